# SPDX-License-Identifier: Apache-2.0
"""Trainings that compute, on two ranks with a core each: nothing is emulated. A GPT of equal blocks, and one whose vocabulary makes
the head heavier than all of them together; each against DeepSpeed's own 1F1B on the best of all chain partitions of the same model,
in turns in the same processes.

    PYTHONPATH=build/release/python python tests/bench/compute_bench.py [--model gpt-computed] [--steps 20]

Every model goes through the commands that a user types: ostinato profile, ostinato plan; then the plan is named in DeepSpeed's configuration.
The machine must have two cores that do nothing else: ranks that wait for each other take the time of the slower one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch.distributed as dist
from emulated_runs import Entry, best_chain, profile, rows_of, show, trainings
from shapes_bench import plan
from support.worlds import World

RANKS = 2
TITLES = {
    "gpt-computed": "8 equal blocks",
    "vocabulary-computed": "6 blocks and a head that is heavier than all of them",
}


def bound_trainings(*args) -> list[dict]:
    """On a core of its own, as `deepspeed --bind_cores_to_rank` starts ranks."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    try:
        return trainings(*args)
    finally:
        os.sched_setaffinity(0, cores)


def compare(world: World, folder: Path, name: str, args) -> None:
    folder.mkdir()
    profiled = profile(name, 0.0, folder / "profile.json")
    chosen = plan(folder, folder / "profile.json", args.micro_batches, RANKS)
    parts, expected = best_chain(profiled, RANKS, args.micro_batches)
    entries = [
        Entry(f"DeepSpeed 1F1B, best chain {list(parts)}", parts),
        Entry(f"ostinato: {chosen['chosen']}", parts, str(folder / "plan.json")),
    ]
    step = chosen.get("whole_step", chosen["makespan"]) / 1e9
    measured = world.run(bound_trainings, name, 0.0, args.micro_batches, args.steps, entries)
    times = [(layer["forward"]["median"] + layer["backward"]["median"]) / 1e6 for layer in profiled["layers"]]
    print(f"\n{TITLES[name]}: ms of the layers {', '.join(f'{time:.1f}' for time in times)}; {args.micro_batches} micro-batches on {RANKS} ranks")
    rows = rows_of(entries, [expected, step], measured)
    show(rows, rows[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=TITLES, action="append", help="default: all")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        for name in args.model or TITLES:
            compare(world, Path(scratch) / name, name, args)


if __name__ == "__main__":
    main()
