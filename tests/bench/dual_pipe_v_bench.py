# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own DualPipeVModule against plans for the same V placement (two chunks a rank) on the same
layers, ranks and memory, emulated: layers sleep.

    PYTHONPATH=build/release/python python tests/bench/dual_pipe_v_bench.py [--unit 1.2] [--steps 3] [--ranks 2] [--model even-large]

On 2 and 4 ranks, layers that are all alike and layers that are not: both get the cuts that `ostinato
partition` finds for a V. DualPipeV runs first, and the search gets as many bytes as it was measured to hold
on its fullest rank. Then the same where memory is short: DualPipeV checkpoints its stages, the only way that
it has, and the search gets what it holds then. What is counted lies in torch's memory; of the large models
nothing lies in the executor's shared memory (docs/plugin.md) either.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emulated_models import MODELS
from emulated_runs import Entry, ostinato, profile, rows_of, show, trainings
from support.worlds import World

MICRO_BATCHES = {2: 8, 4: 12}
CHAINS = ("even", "uneven", "even-large", "uneven-large")
ATTEMPTS = (
    6  # at a plan that runs within the memory: one that takes more than it says is searched again, for less
)
Measure = Callable[[list[Entry]], list[int]]  # runs them; bytes that each holds on its fullest rank
DEMANDS = "DualPipeVModule demands gradient_accumulation_steps >= 2 * ranks, fixed shapes and no bool tensors, and runs whole backwards only; plans do not."


def placement(profiled: Path, ranks: int, path: Path, *options: str) -> Path:
    """Writes the best V for the profile."""
    path.parent.mkdir()
    shape = ("--devices", ranks, "--micro-batches", MICRO_BATCHES[ranks], "--chunks", 2, "--layout", "wave")
    ostinato("partition", profiled, *shape, *options, "--output", path)
    return path


def limited(path: Path, room: int, folder: Path) -> Path:
    """The same placement with `room` bytes on every device, beside what is always in use."""
    folder.mkdir()
    text = path.read_text()
    assert 'memory_unit = "B"' in text
    made = folder / "placement.toml"
    made.write_text(text.replace("[[devices]]\n", f"[[devices]]\nmemory = {static(path) + room}\n"))
    return made


def static(path: Path) -> int:
    return max(device.get("static", 0) for device in tomllib.loads(path.read_text())["devices"])


def plan(path: Path, ranks: int, method: str = "auto") -> dict | None:
    """Searches a plan for the placement, and leaves it in plan.json beside it. None where nothing fits the
    memory."""
    made = path.with_name("plan.json")
    options = ("--micro-batches", MICRO_BATCHES[ranks], "--method", method, "--time-limit", 2)
    fits = ostinato("search", path, *options, "--output", made) is not None
    return json.loads(made.read_text()) if fits else None


def cuts_of(path: Path) -> tuple[int, ...]:
    return (0, *(stage["layers"][1] for stage in tomllib.loads(path.read_text())["stages"]))


@dataclass
class Candidate:
    entry: Entry
    seconds: float  # planned, of a step
    peak: int = 0  # planned, bytes of the fullest rank beside what is always in use; of a rival unknown


@dataclass
class Group:
    """What is compared under the same memory; the first one is the rival."""

    title: str
    candidates: list[Candidate]


def rivals(whole: Path, again: Path, ranks: int) -> list[Candidate]:
    """DualPipeV as it is, and with each stage checkpointed."""
    plain = Entry("DeepSpeed DualPipeVModule", cuts_of(whole), dual_pipe_v=True)
    checkpointed = Entry(
        "DeepSpeed DualPipeVModule, each stage checkpointed", cuts_of(again), dual_pipe_v=True, recompute=True
    )
    found = ((plain, whole), (checkpointed, again))
    return [Candidate(entry, plan(path, ranks, "dualpipe-v")["makespan"] / 1e9) for entry, path in found]


def ours(
    folder: Path, placements: dict[str, Path], room: int, ranks: int, measure: Measure
) -> list[Candidate]:
    """A plan for each placement that runs within `room` bytes a device. Where a plan takes more than it says,
    one for less is searched."""
    within = (fitting(folder / name, path, name, room, ranks, measure) for name, path in placements.items())
    return [candidate for candidate in within if candidate is not None]


def fitting(folder: Path, path: Path, name: str, room: int, ranks: int, measure: Measure) -> Candidate | None:
    """None where no plan was found that runs within the room."""
    told = room
    for _ in range(ATTEMPTS):
        within = limited(path, told, folder.with_name(f"{folder.name}-{room}-{told}"))
        entry = Entry(f"ostinato, {name}", cuts_of(within)[::2], str(within.with_name("plan.json")))
        made = plan(within, ranks)
        if made is None:
            return None
        (held,) = measure([entry])
        if held <= room:
            return Candidate(entry, made["makespan"] / 1e9, max(made["peak_memory"]) - static(within))
        told -= held - room
    return None


def groups_of(folder: Path, profiled: Path, ranks: int, measure: Measure) -> list[Group]:
    """As much memory as DualPipeV takes; and as much as it takes with stages checkpointed, where of our plans
    that with the shortest makespan runs."""
    whole = placement(profiled, ranks, folder / "whole" / "placement.toml")
    split = placement(profiled, ranks, folder / "split" / "placement.toml", "--split-backward")
    again = placement(profiled, ranks, folder / "recompute" / "placement.toml", "--recompute", "always")
    placements = {"whole backwards": whole, "split backwards": split}
    plain, checkpointed = rivals(whole, again, ranks)
    much, little = measure([plain.entry, checkpointed.entry])
    full = ours(folder, placements, much, ranks, measure)
    tight = ours(folder, placements | {"stages recomputed": again}, little, ranks, measure)
    return [
        Group(f"room for what it holds, {much / 2**20:.2f} MiB", [plain, *full]),
        Group(
            f"short of memory, {little / 2**20:.2f} MiB",
            [checkpointed, min(tight, key=lambda found: found.seconds)],
        ),
    ]


def compare(world: World, folder: Path, model: str, profiled: Path, ranks: int, args) -> None:
    folder.mkdir()
    unit, count = args.unit / 1e3, MICRO_BATCHES[ranks]

    def measure(entries: list[Entry]) -> list[int]:
        by_rank = world.run(trainings, model, unit, count, 1, entries)
        return [
            max(of_ranks)
            for of_ranks in zip(*([result["peak"] for result in rank] for rank in by_rank), strict=True)
        ]

    groups = groups_of(folder, profiled, ranks, measure)
    everyone = [candidate for each in groups for candidate in each.candidates]
    entries = [candidate.entry for candidate in everyone]
    by_rank = world.run(trainings, model, unit, count, args.steps, entries)
    rows = rows_of(entries, [candidate.seconds for candidate in everyone], by_rank)
    for each in groups:
        mine, rows = rows[: len(each.candidates)], rows[len(each.candidates) :]
        print(f"\n{ranks} ranks, {count} micro-batches, {model} layers {MODELS[model].costs}: {each.title}")
        show(mine, mine[0])
        for candidate, row in list(zip(each.candidates, mine, strict=True))[1:]:
            print(
                f"{row.name}: peak planned {candidate.peak / 1024:.0f} KiB, measured {max(row.peaks) / candidate.peak:.3f} times that"
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", type=float, default=1.2, help="milliseconds of a forward of cost 1")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, choices=MICRO_BATCHES, action="append", help="default: 2 and 4")
    parser.add_argument("--model", choices=CHAINS, action="append", help="default: even and uneven")
    args = parser.parse_args()
    models = args.model or CHAINS[:2]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for model in models:
            profile(model, args.unit / 1e3, folder / f"{model}.json")
        for ranks in args.ranks or MICRO_BATCHES:
            with World(ranks) as world:
                for model in models:
                    compare(world, folder / f"{model}-{ranks}", model, folder / f"{model}.json", ranks, args)
    print(f"\n{DEMANDS}")


if __name__ == "__main__":
    main()
