# SPDX-License-Identifier: Apache-2.0
"""Trainings that compute, on two ranks with a core each: nothing is emulated. A GPT of equal blocks, and one
whose vocabulary makes the head heavier than all of them together; each against DeepSpeed's own 1F1B on the
best of all chain partitions of the same model, in turns in the same processes.

    PYTHONPATH=build/release/python python tests/bench/compute_bench.py [--model gpt-computed] [--steps 20]

Every model goes through the commands that a user types: ostinato profile, ostinato plan; then the plan is
named in DeepSpeed's configuration. The machine must have two cores that do nothing else: ranks that wait for
each other take the time of the slower one.

Machines drift: between the profile and the training their speed may change by more than a plan is off. So
before each timed step both ranks time some layers alone, as the profile does. "At the pace of the steps" is
the plan's time times what these took over what the profile says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from emulated_runs import Entry, best_chain, profile, rows_of, show, trainings
from shapes_bench import plan
from support.worlds import World

RANKS = 2
MIDDLE = 3  # a layer of each model that is one of Pace's
TITLES = {
    "gpt-computed": "8 equal blocks",
    "vocabulary-computed": "6 blocks and a head that is heavier than all of them",
    "small-computed": "8 blocks of a millisecond",
    "large-computed": "4 blocks of 120 ms",
}
WIDTHS = {"gpt-computed": 256, "vocabulary-computed": 256, "small-computed": 64, "large-computed": 512}


class Pace:
    """How long a layer takes while the steps are timed; each of some layers runs both ways, one after the
    other."""

    def __init__(self, width: int, count: int = 4):
        from emulated_models import HEADS, transformer

        self.layers = [transformer()(width, HEADS) for _ in range(count)]
        self.given = torch.randn(1, width, width)
        self.seconds: list[float] = []  # of a forward and a backward

    def __call__(self) -> None:
        for layer in self.layers:
            given = self.given.clone().requires_grad_()
            begin = time.perf_counter()
            made = layer(given)
            seconds = time.perf_counter() - begin
            gradient = torch.ones_like(made)
            begin = time.perf_counter()
            torch.autograd.backward(made, gradient)
            self.seconds.append(seconds + time.perf_counter() - begin)


def bound_trainings(name: str, *args) -> tuple[list[dict], list[float]]:
    """On a core of its own, as `deepspeed --bind_cores_to_rank` starts ranks. With the seconds of Pace."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    pace = Pace(WIDTHS[name])
    try:
        return trainings(name, *args, pace), pace.seconds
    finally:
        os.sched_setaffinity(0, cores)


def compare(world: World, folder: Path, name: str, args) -> None:
    folder.mkdir()
    profiled = profile(name, 0.0, folder / "profile.json", "--beside", RANKS - 1)  # the script is one rank
    chosen = plan(folder, folder / "profile.json", args.micro_batches, RANKS)
    parts, expected = best_chain(profiled, RANKS, args.micro_batches)
    entries = [
        Entry(f"DeepSpeed 1F1B, best chain {list(parts)}", parts),
        Entry(f"ostinato: {chosen['chosen']}", parts, str(folder / "plan.json")),
    ]
    step = chosen.get("whole_step", chosen["makespan"]) / 1e9
    by_rank = world.run(bound_trainings, name, 0.0, args.micro_batches, args.steps, entries)
    measured = [results for results, _ in by_rank]
    seconds = [of_layer for _, of_rank in by_rank for of_layer in of_rank]
    times = [(layer["forward"]["median"] + layer["backward"]["median"]) / 1e6 for layer in profiled["layers"]]
    print(
        f"\n{TITLES[name]}: ms of the layers {', '.join(f'{time:.1f}' for time in times)}; {args.micro_batches} micro-batches on {RANKS} ranks"
    )
    rows = rows_of(entries, [expected, step], measured)
    show(rows, rows[0])
    pace = statistics.fmean(seconds) * 1e3 / (times[MIDDLE] * profiled["rank"].get("average", 10**6) / 1e6)
    to_plan = ", ".join(f"{row.seconds / (row.planned * pace):.3f}" for row in rows)
    print(f"at the pace of the steps, {pace:.3f} of the profile's, they take {to_plan} times their plans")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=TITLES, action="append", help="default: all")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        for name in args.model or TITLES:
            compare(world, Path(scratch) / name, name, args)


if __name__ == "__main__":
    main()
