# SPDX-License-Identifier: Apache-2.0
"""`--devices launcher`: makes a device file (`ostinato-devices/1`) of the ranks that torchrun, deepspeed or Slurm
started.

    torchrun --nproc-per-node 4 -m ostinato plan profile.json --devices launcher --micro-batches 8 ...
    torchrun --nproc-per-node 4 -m ostinato.devices --output devices.toml      # or keep the file

Every rank reports its host, its kind of device and its memory. The link within a node is measured between its
first two ranks; links between nodes are measured between the first ranks of neighbours, and the slowest counts.
They use NCCL if each rank has its own GPU, else gloo, as `ostinato profile` does. Rank 0 gets the result, the
other ranks end.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import torch

from ostinato.core import Devices
from ostinato.errors import Status
from ostinato.files import why_not_apart, write_text
from ostinato.profile.machine.device import Cpu, device_of_this_process
from ostinato.profile.machine.launched import file_of_kind, world
from ostinato.profile.machine.transfers import fitted, measure_pairs
from ostinato.profile.machine.wire import joined
from ostinato.profile.options import positive
from ostinato.ranks import cores
from ostinato.groups import everyones

LAUNCH = "start it with torchrun -m, deepspeed --module or Slurm (with MASTER_ADDR and MASTER_PORT), one process per rank"


@dataclass(frozen=True)
class Rank:
    host: str
    kind: str
    memory: int  # bytes


@dataclass(frozen=True)
class Node:
    """Ranks [first, first + count) in a row, of one host and one kind."""

    host: str
    kind: str
    first: int
    count: int


def this_rank(device: Any, sharers: int) -> Rank:
    """`sharers`: ranks on the device, which share its memory; all of a host share its processor."""
    return Rank(
        socket.gethostname(),
        os.environ.get("OSTINATO_DEVICE_KIND") or device.kind,
        device.usable_bytes() // sharers,
    )


def nodes_of(ranks: list[Rank]) -> list[Node]:
    """In rank order, which is the order of the pipeline."""
    nodes, first = [], 0
    for (host, kind), members in groupby(ranks, key=lambda rank: (rank.host, rank.kind)):
        nodes.append(Node(host, kind, first, len(list(members))))
        first += nodes[-1].count
    return nodes


def pairs_to_measure(nodes: list[Node]) -> list[tuple[int, int]]:
    within = [(node.first, node.first + 1) for node in nodes if node.count > 1]
    return within + [(a.first, b.first) for a, b in pairwise(nodes)]


def link(costs: list[Any]) -> str:
    """The slowest for a megabyte, as keys of a table; latency in ns, bandwidth in GB/s."""
    slowest = max(
        costs,
        key=lambda cost: (
            cost.latency + (2**20 * 10**9 / cost.bytes_per_second if cost.bytes_per_second else 0)
        ),
    )
    return f"latency = {slowest.latency}\nbandwidth = {slowest.bytes_per_second / 1e9:.9f}\n"


def shared_cores(places: Sequence[cores.Place], chosen: Sequence[int]) -> dict[int, int]:
    """By the first device of each host whose devices share cores, how many. `places`: of all ranks; `chosen`:
    those that are devices."""
    found, first = {}, 0
    for devices, of_host in cores.hosts(places, chosen):
        if of_host < devices:
            found[first] = of_host
        first += devices
    return found


def device_file(
    ranks: list[Rank], costs: list[Any], profile: Path | None = None, shared: Mapping[int, int] | None = None
) -> str:
    """The text. `costs`: of pairs_to_measure(). `profile`: where several kinds were profiled, each names its
    own file. `shared`: as shared_cores()."""
    nodes = nodes_of(ranks)
    kinds = list(dict.fromkeys(rank.kind for rank in ranks))
    by_pair = {(cost.source, cost.target): cost for cost in costs}
    between = [by_pair[a.first, b.first] for a, b in pairwise(nodes)]
    text = ['format = "ostinato-devices/1"\nname = "launcher"\ntime_unit = "ns"\nmemory_unit = "B"\n']
    if between:
        text.append(f"[between]\n{link(between)}")
    for kind in kinds:
        memory = min(rank.memory for rank in ranks if rank.kind == kind)
        text.append(f"[[kinds]]\nname = {json.dumps(kind)}\nmemory = {memory}\n")
        if profile is not None and len(kinds) > 1:
            text[-1] += f"profile = {json.dumps(str(file_of_kind(profile, kind, kinds).resolve()))}\n"
    for index, node in enumerate(nodes):
        name = json.dumps(f"{index}:{node.host}")
        text.append(f"[[nodes]]\nname = {name}\nkind = {json.dumps(node.kind)}\ndevices = {node.count}\n")
        if shared and node.first in shared:
            text[-1] += f"cores = {shared[node.first]}\n"
        if node.count > 1:
            text[-1] += link([by_pair[node.first, node.first + 1]])
    return "\n".join(text)


def describe(profile: Path | None = None, stages: int = 0) -> str | None:
    """Every rank of a launch must call it; returns the text on rank 0, else None. `stages`: number of pipeline
    ranks, if several replicas of the pipeline were started; the file has the first replica's ranks, as DeepSpeed
    numbers them (pipe, data).

    Raises ValueError if there is no launcher, or the ranks are not a multiple of `stages`.
    """
    rank, count = world()
    if count < 2:
        raise ValueError(f"no launcher started these ranks: {LAUNCH}")
    if stages < 0 or (stages and count % stages):
        raise ValueError(f"{count} ranks are not a multiple of {stages} stages")
    device = device_of_this_process()
    here = cores.here(isinstance(device, Cpu))
    torch.set_num_threads(1)
    with joined(rank, count, "env://", device) as wire:
        places = everyones((socket.gethostname(), device.identity()))
        everyone = everyones(this_rank(device, places.count(places[rank])))
        chosen = list(range(0, count, count // stages)) if stages else list(range(count))
        ranks = [everyone[r] for r in chosen]
        shared = shared_cores(everyones(here), chosen)
        pairs = [(chosen[a], chosen[b]) for a, b in pairs_to_measure(nodes_of(ranks))]
        rows = everyones(measure_pairs(wire, rank, pairs))
    if rank != 0:
        return None
    place = {global_rank: index for index, global_rank in enumerate(chosen)}
    costs = fitted([[place[a], place[b], *measured] for part in rows for a, b, *measured in part])
    return device_file(ranks, costs, profile, shared)


def from_launcher(profile: Path | None = None, stages: int = 0) -> Devices | None:
    """describe() as Devices, for ostinato.plan() and ostinato.partition()."""
    text = describe(profile, stages)
    return None if text is None else Devices.from_text(text, "launcher")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ostinato.devices", description="Writes the device file of a launch."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="file for the device file (TOML)")
    parser.add_argument(
        "--profile",
        type=Path,
        help="as given to ostinato profile: several kinds of devices each name their own file",
    )
    parser.add_argument(
        "--stages",
        type=positive,
        default=0,
        help="number of pipeline ranks, if data-parallel replicas were started too",
    )
    args = parser.parse_args(argv)
    if wrong := why_not_apart({"--output": args.output}, [args.profile] if args.profile else []):
        parser.error(wrong)
    try:
        text = describe(args.profile, args.stages)
    except ValueError as error:
        print(f"ostinato.devices: {error}", file=sys.stderr)
        return Status.BAD_INPUT
    if text is not None:
        write_text(args.output, text)
        print(f"wrote {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
