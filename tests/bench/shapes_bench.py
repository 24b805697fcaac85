# SPDX-License-Identifier: Apache-2.0
"""Models whose best placement is no chain, emulated on 4 ranks, from their measured profile to training: a
GPT with a heavy vocabulary (M), an encoder and a decoder (NN), two branches that meet (K). Each against
DeepSpeed's own 1F1B on the best of all chain partitions of the same model, in the same run.

    PYTHONPATH=build/release/python python tests/bench/shapes_bench.py [--model two-branches] [--unit 4] [--steps 3]

Every model goes through the commands that a user types: ostinato profile, ostinato plan; then the plan is
named in DeepSpeed's configuration.
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
TITLES = {
    "gpt": "M: a GPT whose embedding and head are as heavy as 4 and 8 of its layers",
    "encoder-decoder": "NN: an encoder and a decoder, each with an embedding as heavy as 10 and 7 layers",
    "two-branches": "K: two branches that meet",
}


def plan(folder: Path, profiled: Path, micro_batches: int, ranks: int = RANKS) -> dict:
    """`ostinato plan`, within 5 seconds: what it chose."""
    files = ("--placement-output", folder / "placement.toml", "--output", folder / "plan.json")
    options = ("--devices", ranks, "--micro-batches", micro_batches, "--time-limit", 5, "--json")
    return json.loads(ostinato("plan", profiled, *options, *files))


def compare(world: World, folder: Path, name: str, args) -> None:
    unit, count = args.unit / 1e3, args.micro_batches
    folder.mkdir()
    profiled = profile(name, unit, folder / "profile.json")
    chosen = plan(folder, folder / "profile.json", count)
    parts, expected = best_chain(profiled, RANKS, count)
    entries = [
        Entry(f"DeepSpeed 1F1B, best chain {list(parts)}", parts),
        Entry(f"ostinato: {chosen['chosen']}", parts, str(folder / "plan.json")),
    ]
    step = chosen.get("whole_step", chosen["makespan"]) / 1e9
    rows = rows_of(entries, [expected, step], world.run(trainings, name, unit, count, args.steps, entries))
    print(
        f"\n{TITLES[name]}: costs {MODELS[name].costs}, unit {args.unit:g} ms, {count} micro-batches on {RANKS} ranks"
    )
    show(rows, rows[0])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=TITLES, action="append", help="default: all")
    parser.add_argument("--unit", type=float, default=4.0, help="milliseconds of a forward of cost 1")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        for name in args.model or TITLES:
            compare(world, Path(scratch) / name, name, args)


if __name__ == "__main__":
    main()
