"""DeepSpeed's own DualPipeVModule against plans for the same V placement (two chunks a rank) on the same layers, ranks and memory, emulated: layers sleep.

    PYTHONPATH=build/release/python python tests/bench/dual_pipe_v_bench.py [--unit 1.2] [--steps 3]

On 2 and 4 ranks, layers that are all alike and layers that are not: both get the cuts that `ostinato partition` finds for a V, and the
search as much memory as DualPipeV needs. Then half of that memory, which DualPipeV meets by checkpointing its stages only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from emulated_models import MODELS
from emulated_runs import Entry, ostinato, profile, rows_of, show, trainings
from support.worlds import World

MICRO_BATCHES = {2: 8, 4: 12}
DEMANDS = (
    "DualPipeVModule demands gradient_accumulation_steps >= 2 * ranks, fixed shapes and no bool tensors, and runs whole backwards only; plans do not."
)


def placement(profiled: Path, ranks: int, path: Path, *options: str) -> Path:
    """Writes the best V for the profile."""
    path.parent.mkdir()
    shape = ("--devices", ranks, "--micro-batches", MICRO_BATCHES[ranks], "--chunks", 2, "--layout", "wave")
    ostinato("partition", profiled, *shape, *options, "--output", path)
    return path


def limited(path: Path, room: int, folder: Path) -> Path:
    """The same placement with `room` bytes on every device."""
    folder.mkdir()
    text = path.read_text()
    assert 'memory_unit = "B"' in text
    made = folder / "placement.toml"
    made.write_text(text.replace("[[devices]]\n", f"[[devices]]\nmemory = {room}\n"))
    return made


def plan(path: Path, ranks: int, method: str = "auto") -> dict | None:
    """Searches a plan for the placement, and leaves it in plan.json beside it. None where nothing fits the memory."""
    made = path.with_name("plan.json")
    options = ("--micro-batches", MICRO_BATCHES[ranks], "--method", method, "--time-limit", 2)
    fits = ostinato("search", path, *options, "--output", made) is not None
    return json.loads(made.read_text()) if fits else None


def cuts_of(path: Path) -> tuple[int, ...]:
    return (0, *(stage["layers"][1] for stage in tomllib.loads(path.read_text())["stages"]))


@dataclass
class Group:
    """What is compared under the same memory; the first entry is the rival."""

    title: str
    entries: list[Entry]
    planned: list[float]


def ours(folder: Path, placements: dict[str, Path], room: int, ranks: int) -> list[tuple[Entry, float]]:
    """A plan for each placement that fits `room` bytes a device, and its makespan in seconds."""
    found = []
    for name, path in placements.items():
        within = limited(path, room, folder / f"{name}-{room}")
        entry = Entry(f"ostinato, {name}", cuts_of(within)[::2], str(within.with_name("plan.json")))
        if (made := plan(within, ranks)) is not None:
            found.append((entry, made["makespan"] / 1e9))
    return found


def groups_of(folder: Path, profiled: Path, ranks: int) -> list[Group]:
    """As much memory as DualPipeV takes; and half of it beyond parameters, where of our plans that with the shortest makespan runs."""
    whole = placement(profiled, ranks, folder / "whole" / "placement.toml")
    split = placement(profiled, ranks, folder / "split" / "placement.toml", "--split-backward")
    again = placement(profiled, ranks, folder / "recompute" / "placement.toml", "--recompute", "always")
    placements = {"whole backwards": whole, "split backwards": split}
    theirs, checkpointed = plan(whole, ranks, "dualpipe-v"), plan(again, ranks, "dualpipe-v")
    static = max(device.get("static", 0) for device in tomllib.loads(whole.read_text())["devices"])
    room = max(theirs["peak_memory"])
    half = static + (room - static) // 2
    best = min(ours(folder, placements | {"stages recomputed": again}, half, ranks), key=lambda found: found[1])
    rival = Entry("DeepSpeed DualPipeVModule", cuts_of(whole), dual_pipe_v=True)
    short = Entry("DeepSpeed DualPipeVModule, each stage checkpointed", cuts_of(again), dual_pipe_v=True, recompute=True)
    full = [(rival, theirs["makespan"] / 1e9), *ours(folder, placements, room, ranks)]
    tight = [(short, checkpointed["makespan"] / 1e9), best]
    return [
        Group(f"room for what it holds, {room / 2**20:.2f} MiB", *map(list, zip(*full, strict=True))),
        Group(f"half of that, {half / 2**20:.2f} MiB", *map(list, zip(*tight, strict=True))),
    ]


def compare(world: World, folder: Path, model: str, profiled: Path, ranks: int, args) -> None:
    folder.mkdir()
    groups = groups_of(folder, profiled, ranks)
    count = MICRO_BATCHES[ranks]
    entries = [entry for each in groups for entry in each.entries]
    by_rank = world.run(trainings, model, args.unit / 1e3, count, args.steps, entries)
    rows = rows_of(entries, [seconds for each in groups for seconds in each.planned], by_rank)
    for each in groups:
        mine, rows = rows[: len(each.entries)], rows[len(each.entries) :]
        print(f"\n{ranks} ranks, {count} micro-batches, {model} layers {MODELS[model].costs}: {each.title}")
        show(mine, mine[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", type=float, default=1.2, help="milliseconds of a forward of cost 1")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for model in ("even", "uneven"):
            profile(model, args.unit / 1e3, folder / f"{model}.json")
        for ranks in MICRO_BATCHES:
            with World(ranks) as world:
                for model in ("even", "uneven"):
                    compare(world, folder / f"{model}-{ranks}", model, folder / f"{model}.json", ranks, args)
    print(f"\n{DEMANDS}")


if __name__ == "__main__":
    main()
