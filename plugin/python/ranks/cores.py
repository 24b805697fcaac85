# SPDX-License-Identifier: Apache-2.0
"""Ranks that compute on CPUs and share them. What is planned here counts that; of a plan that was made
elsewhere rank 0 says it.

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
    """Where one rank computes; without cores where that is an accelerator."""

    host: str
    cores: tuple[int, ...]
    threads: int = 1  # of an operator


@dataclass(frozen=True)
class Shared:
    """A host whose `ranks` are more than its cores. `cores`: of them, so many ranks compute at full speed at
    a time."""

    host: str
    ranks: tuple[int, ...]
    cores: int

    @property
    def share(self) -> float:
        """So many ranks a core."""
        return len(self.ranks) / self.cores

    def __str__(self) -> str:
        return f"{counted(len(self.ranks), 'rank')} share {counted(self.cores, 'core')} of {self.host}"


def here(on_cpu: bool) -> Place:
    """Of this rank, which computes on a processor or on an accelerator."""
    return Place(
        socket.gethostname(),
        tuple(sorted(os.sched_getaffinity(0))) if on_cpu else (),
        torch.get_num_threads(),
    )


def sharing(places: Sequence[Place]) -> list[Shared]:
    """The hosts where not every rank can have cores of its own. `places`: by rank."""
    found = []
    for host in dict.fromkeys(place.host for place in places):
        ranks = [rank for rank, place in enumerate(places) if place.host == host and place.cores]
        cores = {core for rank in ranks for core in places[rank].cores}
        threads = max((places[rank].threads for rank in ranks), default=1)
        if len(ranks) * threads > len(cores):
            found.append(Shared(host, tuple(ranks), max(1, len(cores) // threads)))
    return [shared for shared in found if shared.share > 1]


def hosts(places: Sequence[Place], pipeline: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(devices, cores) of each host in turn, for a plan of `pipeline`, the ranks of one pipeline in its
    order; empty where no rank shares cores. Where pipelines stand beside each other on a host, each has its
    part of the cores.
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
    """Of the host whose cores are shared by most ranks each; "" where every rank can have its own, or the
    plan counts the sharing."""
    shared = sharing(places)
    if not shared or planned:
        return ""
    worst = max(shared, key=lambda of: of.share)
    return (
        f"{worst}, and this plan has one for each: steps may take up to {worst.share:.3g} times as long as it says, and orders that keep "
        'ranks busier gain less; a plan that is searched here ("profile" or "auto") counts the sharing, as does one for --devices launcher'
    )
