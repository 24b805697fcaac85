# SPDX-License-Identifier: Apache-2.0
"""Ranks that compute on CPUs and share cores. A plan that is searched in the run takes that into account; for a
plan that was made elsewhere, rank 0 says so.

sharing([Place("node1", (0, 1))] * 4)    # [Shared("node1", 4 ranks, 2 cores)]
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from ostinato.errors import counted


class Place(NamedTuple):
    """Where one rank computes; without cores on an accelerator."""

    host: str
    cores: tuple[int, ...]
    threads: int = 1  # per operator


@dataclass(frozen=True)
class Shared:
    """A host with more `ranks` than cores. `cores`: how many ranks can compute at full speed at a time."""

    host: str
    ranks: tuple[int, ...]
    cores: int

    @property
    def share(self) -> float:
        """Ranks per core."""
        return len(self.ranks) / self.cores

    def __str__(self) -> str:
        return f"{counted(len(self.ranks), 'rank')} share {counted(self.cores, 'core')} of {self.host}"


def here(on_cpu: bool) -> Place:
    """The place of this rank, which computes on a CPU or on an accelerator."""
    return Place(
        socket.gethostname(),
        tuple(sorted(os.sched_getaffinity(0))) if on_cpu else (),
        torch.get_num_threads(),
    )


def sharing(places: Sequence[Place]) -> list[Shared]:
    """The hosts where ranks must share cores. `places`: by rank."""
    found = []
    for host in dict.fromkeys(place.host for place in places):
        ranks = [rank for rank, place in enumerate(places) if place.host == host and place.cores]
        cores = {core for rank in ranks for core in places[rank].cores}
        threads = max((places[rank].threads for rank in ranks), default=1)
        if len(ranks) * threads > len(cores):
            found.append(Shared(host, tuple(ranks), max(1, len(cores) // threads)))
    return [shared for shared in found if shared.share > 1]


def hosts(places: Sequence[Place], pipeline: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(devices, cores) of each host in turn, for a plan of `pipeline`, the ranks of one pipeline in order;
    empty where no rank shares cores. Pipelines on the same host get a part of the cores each.
    """
    shared = {of.host: of for of in sharing(places)}
    if not any(places[rank].host in shared for rank in pipeline):
        return ()
    found = []
    for host, members in groupby(pipeline, key=lambda rank: places[rank].host):
        devices = len(list(members))
        of = shared.get(host)
        found.append((devices, max(1, of.cores * devices // len(of.ranks)) if of else devices))
    return tuple(found)


def note(places: Sequence[Place], planned: bool) -> str:
    """What to say of the host with the most ranks per core; "" where no rank shares cores, or the plan counts
    the sharing."""
    shared = sharing(places)
    if not shared or planned:
        return ""
    worst = max(shared, key=lambda of: of.share)
    return (
        f"{worst}, but this plan assumes one core per rank: steps may take up to {worst.share:.3g} times as long as planned, and the plan may "
        'gain less; search a plan in the run ("profile" or "auto"), or with --devices launcher, to count the sharing'
    )
