"""Requests through a model of two branches that meet (K), emulated on 4 ranks: one alone, and many in flight. A plan of forwards over its branches
against DeepSpeed's own eval_batch() on the best chain partition of the same layers, in turns.

    PYTHONPATH=build/release/python python tests/bench/serving_bench.py [--unit 4] [--requests 8] [--rounds 5]

ostinato profile, ostinato partition --stages graph, ostinato search; the plan runs in ostinato.torch.Pipeline. A round ends when its last
answer is there; ranks meet between rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from emulated_models import BRANCHES, layer, tokens
from emulated_runs import Entry, best_chain, make_engine, ostinato, profile, slowest
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
        self.given = sorted({r for reads in self.reads.values() for r in reads} - set(self.names), key=[*INPUTS, *NAMES].index)
        made = [layer(kind, unit * cost).build() for kind, cost, *_ in (BRANCHES[name] for name in self.names)]
        cut = made if shard is None else [sharded(part, shard, last=name == NAMES[-1]) for part, name in zip(made, self.names, strict=True)]
        self.layers = nn.ModuleList(cut)

    def forward(self, *values):
        known = dict(zip(self.given, values, strict=True))
        for name, module in zip(self.names, self.layers, strict=True):
            known[name] = module(*(known[r] for r in self.reads[name]))
        return known[self.names[-1]]


def planned_requests(plan: str, unit: float, inputs: dict[str, list]) -> Callable:
    """`inputs`: by stage."""
    from ostinato.torch import Pipeline

    pipe = Pipeline(plan, lambda stage: Part(stage.only or range(stage.first_layer, stage.end_layer), unit, stage.shard))
    return lambda: pipe.infer(inputs)


def deepspeed_requests(parts: tuple[int, ...], unit: float, count: int) -> Callable:
    engine, data = make_engine(MODEL, unit, count, Entry("", parts))
    options = {"compute_loss": False, "reduce_output": None, "bcast_loss": False, "num_micro_batches": count}
    return lambda: engine.eval_batch(data, **options)


def serve(plan: str, parts: tuple[int, ...], unit: float, count: int, rounds: int, inputs: dict[str, list]) -> list[list[float]]:
    """Seconds of each round but the first: DeepSpeed's and ours."""
    ways = [deepspeed_requests(parts, unit, count), planned_requests(plan, unit, inputs)]
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


def forwards_only(placement: Path, path: Path) -> Path:
    """The same stages, for serving: nothing is kept for a backward."""
    head, *blocks = placement.read_text().split("[[blocks]]")
    kept = (re.sub(r"(?m)^memory = .*$", "memory = 0", block) for block in blocks if 'kind = "forward"' in block)
    path.parent.mkdir()
    path.write_text("[[blocks]]".join([head, *kept]))
    return path


def inputs_of(placement: Path, count: int) -> dict[str, list]:
    """Requests for the stages that take them: those that run a branch's embedding."""
    found, stream = {}, tokens(len(INPUTS))
    requests = [next(stream) for _ in range(count)]
    for stage in tomllib.loads(placement.read_text())["stages"]:
        ranges = stage["layers"] if isinstance(stage["layers"][0], list) else [stage["layers"]]
        own = {NAMES[i] for first, end in ranges for i in range(first, end)}
        taken = [i for i, name in enumerate(INPUTS) if any(name in BRANCHES[one][2:] for one in own)]
        if taken:
            found[stage["name"]] = [tuple(request[i] for i in taken) for request in requests]
    return found


@dataclass(frozen=True)
class Load:
    title: str
    requests: int
    objective: str


def compare(world: World, folder: Path, load: Load, profiled: dict, args) -> None:
    placement = forwards_only(folder / "graph.toml", folder / load.objective / "placement.toml")
    plan = placement.with_name("plan.json")
    ostinato("search", placement, "--micro-batches", load.requests, "--objective", load.objective, "--output", plan)
    parts, _ = best_chain(profiled, RANKS, args.requests)
    forward = [row["forward"]["median"] / 1e9 for row in profiled["layers"]]
    stages = [sum(forward[a:b]) for a, b in itertools.pairwise(parts)]
    planned = [sum(stages) + (load.requests - 1) * max(stages), json.loads(plan.read_text())["makespan"] / 1e9]
    given = inputs_of(placement, load.requests)
    by_rank = world.run(serve, str(plan), parts, args.unit / 1e3, load.requests, args.rounds, given)
    measured = [slowest([rank[way] for rank in by_rank]) for way in range(2)]
    names = [f"DeepSpeed, chain {list(parts)}", "ostinato, stages over the branches"]
    print(f"\n{load.title}\n{'':44}{'planned':>11}{'measured':>11}{'to plan':>9}{'rival/it':>9}")
    for name, expected, seconds in zip(names, planned, measured, strict=True):
        print(f"{name:44}{expected * 1e3:8.1f} ms{seconds * 1e3:8.1f} ms{seconds / expected:9.3f}{measured[0] / seconds:9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", type=float, default=4.0, help="milliseconds of a forward of cost 1")
    parser.add_argument("--requests", type=int, default=8, help="in flight, where there are many")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loads = [Load("One request", 1, "latency"), Load(f"{args.requests} requests in flight", args.requests, "makespan")]
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        folder = Path(scratch)
        profiled = profile(MODEL, args.unit / 1e3, folder / "profile.json")
        shape = ("--devices", RANKS, "--stages", "graph", "--shard", "8:both,9:head", "--output", folder / "graph.toml")
        ostinato("partition", folder / "profile.json", *shape)
        for load in loads:
            compare(world, folder, load, profiled, args)


if __name__ == "__main__":
    main()
