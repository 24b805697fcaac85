# SPDX-License-Identifier: Apache-2.0
"""Exchanges of experts on a lane, beside what computes, emulated: layers sleep.

    PYTHONPATH=build/release/python python tests/bench/lanes_bench.py [--unit 4] [--steps 3] [--micro-batches 32]

Four ranks, eight blocks of attention, dispatch, experts and combine. In one run, in turns: DeepSpeed's 1F1B on the
best partition into one stage a rank, the best plan whose ranks do one thing at a time, and the best with lanes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from emulated_models import MODELS
from emulated_runs import Entry, best_chain, ostinato, profile, rows_of, show, trainings
from support.worlds import World

RANKS = 4
PLANS = {"without lanes": ("--without", "lanes,split"), "with lanes": ("--without", "split")}


def planned(profiled: Path, micro_batches: int, folder: Path, options: tuple[str, ...]) -> float:
    """Writes plan.json and placement.toml; the seconds of a step."""
    folder.mkdir()
    ostinato(
        *("plan", profiled, "--devices", RANKS, "--micro-batches", micro_batches, *options),
        *("--output", folder / "plan.json", "--placement-output", folder / "placement.toml"),
    )
    return json.loads((folder / "plan.json").read_text())["makespan"] / 1e9


def compare(model: str, unit: float, micro_batches: int, steps: int, folder: Path, world: World) -> None:
    profiled = folder / "profile.json"
    cuts, seconds = best_chain(profile(model, unit, profiled), RANKS, micro_batches)
    entries, expected = [Entry("DeepSpeed 1F1B, best stages", cuts)], [seconds]
    for name, options in PLANS.items():
        expected.append(planned(profiled, micro_batches, folder / name, options))
        entries.append(Entry(f"ostinato, {name}", cuts, str(folder / name / "plan.json")))
    by_rank = world.run(trainings, model, unit, micro_batches, steps, entries)
    rows = rows_of(entries, expected, by_rank)
    print(f"\n{model}: {micro_batches} micro-batches on {RANKS} ranks")
    show(rows, rows[0])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", type=float, default=4.0, help="milliseconds of a forward that computes")
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    with World(RANKS) as world:
        for model in filter(lambda name: name.startswith("experts-"), MODELS):
            with tempfile.TemporaryDirectory() as folder:
                compare(model, args.unit / 1e3, args.micro_batches, args.steps, Path(folder), world)


if __name__ == "__main__":
    main()
