# SPDX-License-Identifier: Apache-2.0
"""Requests through a model of two branches that meet (K), emulated on 4 ranks: one alone, many in flight, and
more than a plan has, without end. Stages of `ostinato partition --inference` against DeepSpeed's own
eval_batch() on the best chain partition of the same layers, in turns.

    PYTHONPATH=build/release/python python tests/bench/serving_bench.py [--unit 4] [--requests 8] [--many 64] [--rounds 5]

`ostinato search` plans them; they run in ostinato.torch.Pipeline. A round ends when its last answer is there;
ranks meet between rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from emulated_models import BRANCHES, layer, tokens
from emulated_runs import Entry, make_engine, ostinato, profile, slowest
from support.worlds import World
from torch import nn

RANKS, MODEL, NAMES = 4, "two-branches", list(BRANCHES)
INPUTS = ("tokens", "pixels")


# ---- on every rank


class Part(nn.Module):
    """Layers of one stage. It is given what they read and do not make, in the order of the model."""

    def __init__(self, indices: Sequence[int], unit: float, shard):
        from ostinato.nn import sharded

        super().__init__()
        self.names = [NAMES[i] for i in indices]
        self.reads = {name: BRANCHES[name][2:] for name in self.names}
        self.given = sorted(
            {r for reads in self.reads.values() for r in reads} - set(self.names), key=[*INPUTS, *NAMES].index
        )
        made = [
            layer(kind, unit * cost).build() for kind, cost, *_ in (BRANCHES[name] for name in self.names)
        ]
        cut = (
            made
            if shard is None
            else [
                sharded(part, shard, last=name == NAMES[-1])
                for part, name in zip(made, self.names, strict=True)
            ]
        )
        self.layers = nn.ModuleList(cut)

    def forward(self, *values):
        known = dict(zip(self.given, values, strict=True))
        for name, module in zip(self.names, self.layers, strict=True):
            known[name] = module(*(known[r] for r in self.reads[name]))
        return known[self.names[-1]]


def planned_requests(plan: str, unit: float, requests: list[dict], each: int) -> list[Callable]:
    """`requests`: inputs by stage. infer() with `each` of them at a time; and serve() where they are more."""
    from ostinato.torch import Pipeline

    pipe = Pipeline(plan, lambda stage: Part(stage.layers, unit, stage.shard))
    groups = [requests[i : i + each] for i in range(0, len(requests), each)]
    inputs = [{stage: [one[stage] for one in group] for stage in group[0]} for group in groups]
    calls = [lambda: [pipe.infer(group) for group in inputs]]
    return calls + [lambda: pipe.serve(requests, slots=len(requests))] * (len(groups) > 1)


def deepspeed_requests(parts: tuple[int, ...], unit: float, count: int) -> Callable:
    engine, data = make_engine(MODEL, unit, count, Entry("", parts))
    options = {"compute_loss": False, "reduce_output": None, "bcast_loss": False, "num_micro_batches": count}
    return lambda: engine.eval_batch(data, **options)


def serve(
    plan: str, parts: tuple[int, ...], unit: float, each: int, rounds: int, requests: list[dict]
) -> list[list[float]]:
    """Seconds of each round but the first: DeepSpeed's and ours."""
    ways = [deepspeed_requests(parts, unit, len(requests)), *planned_requests(plan, unit, requests, each)]
    seconds: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, mine in zip(ways, seconds, strict=True):
            dist.barrier()
            begin = time.perf_counter()
            way()
            if number:
                mine.append(time.perf_counter() - begin)
    return seconds


# ---- before


def requests_for(placement: Path, count: int) -> list[dict]:
    """By stages that take inputs: those that run a branch's embedding."""
    takers, stream = {}, tokens(len(INPUTS))
    for stage in tomllib.loads(placement.read_text())["stages"]:
        ranges = stage["layers"] if isinstance(stage["layers"][0], list) else [stage["layers"]]
        own = {NAMES[i] for first, end in ranges for i in range(first, end)}
        taken = [i for i, name in enumerate(INPUTS) if any(name in BRANCHES[one][2:] for one in own)]
        if taken:
            takers.setdefault(stage["name"], []).extend(taken)
    requests = [next(stream) for _ in range(count)]
    return [
        {stage: tuple(request[i] for i in sorted({*taken})) for stage, taken in takers.items()}
        for request in requests
    ]


def best_chain(forward: Sequence[float], requests: int) -> tuple[tuple[int, ...], float]:
    """Of all partitions into one chunk a rank the quickest: its cuts, and the seconds of so many requests."""

    def seconds(cuts: tuple[int, ...]) -> float:
        stages = [sum(forward[a:b]) for a, b in itertools.pairwise(cuts)]
        return sum(stages) + (requests - 1) * max(stages)

    every = [
        (0, *middle, len(forward)) for middle in itertools.combinations(range(1, len(forward)), RANKS - 1)
    ]
    best = min(every, key=seconds)
    return best, seconds(best)


@dataclass(frozen=True)
class Load:
    title: str
    requests: int
    each: int  # micro-batches of the plan
    objective: str


def planned_seconds(plan: Path, placement: Path, load: Load) -> list[float]:
    """Of infer(), call after call, and of serve()."""
    from ostinato.torch.pipeline import lowered

    calls = json.loads(plan.read_text())["makespan"] * load.requests // load.each
    return [calls / 1e9, lowered(plan, placement, load.requests).makespan / 1e9][
        : 1 + (load.requests > load.each)
    ]


def compare(world: World, folder: Path, load: Load, profiled: dict, args) -> None:
    placement, plan = (folder / str(load.requests) / name for name in ("placement.toml", "plan.json"))
    plan.parent.mkdir()
    shape = f"--inference --devices {RANKS} --stages graph --shard 8:both,9:head --output {placement}"
    ostinato("partition", folder / "profile.json", *shape.split())
    ostinato(
        "search", placement, "--micro-batches", load.each, "--objective", load.objective, "--output", plan
    )
    forward = [row["forward"]["median"] / 1e9 for row in profiled["layers"]]
    parts, chain = best_chain(forward, load.requests)
    requests = requests_for(placement, load.requests)
    by_rank = world.run(serve, str(plan), parts, args.unit / 1e3, load.each, args.rounds, requests)
    planned = [chain, *planned_seconds(plan, placement, load)]
    measured = [slowest([rank[way] for rank in by_rank]) for way in range(len(planned))]
    names = [f"DeepSpeed, chain {list(parts)}", f"ostinato, infer() of {load.each}", "ostinato, serve()"]
    print(f"\n{load.title}\n{'':44}{'planned':>11}{'measured':>11}{'to plan':>9}{'rival/it':>9}")
    for name, expected, seconds in zip(names, planned, measured, strict=False):
        print(
            f"{name:44}{expected * 1e3:8.1f} ms{seconds * 1e3:8.1f} ms{seconds / expected:9.3f}{measured[0] / seconds:9.2f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", type=float, default=4.0, help="milliseconds of a forward of cost 1")
    parser.add_argument("--requests", type=int, default=8, help="in flight, where there are many")
    parser.add_argument("--many", type=int, default=64, help="requests of a stream, a multiple of that")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    few, many = args.requests, args.many // args.requests * args.requests
    loads = [
        Load("One request", 1, 1, "latency"),
        Load(f"{few} requests in flight", few, few, "makespan"),
        Load(f"{many} requests", many, few, "makespan"),
    ]
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        folder = Path(scratch)
        profiled = profile(MODEL, args.unit / 1e3, folder / "profile.json")
        for load in loads:
            compare(world, folder, load, profiled, args)


if __name__ == "__main__":
    main()
