# SPDX-License-Identifier: Apache-2.0
"""Placements and plans for tests of the plugin."""

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """`cuts[i]` is the first layer of stage i + 1; `ranks[i]` runs stage i: a rank, or several that share it.
    `split`: backwards are in two halves. `method` is the search's. `lanes`: stages on a lane of their rank.
    `offloaded`: stages that a lane copies to the host and back."""

    name: str
    cuts: tuple[int, ...]
    ranks: tuple[int | tuple[int, ...], ...]
    split: bool = False
    method: str = "auto"
    lanes: tuple[int, ...] = ()
    offloaded: tuple[int, ...] = ()

    def devices(self, stage: int) -> list[int]:
        ranks = self.ranks[stage]
        return [ranks] if isinstance(ranks, int) else list(ranks)


def placement_text(
    layout: Layout, layers: int, forward: int = 100, backward: int = 200, trains: bool = True
) -> str:
    """A chain of forwards and backwards; `forward` and `backward` are microseconds a layer. Not `trains`:
    forwards only."""
    bounds = [0, *layout.cuts, layers]
    devices = 1 + max(device for s in range(len(layout.ranks)) for device in layout.devices(s))
    text = [f'format = "ostinato-placement/1"\nname = "{layout.name}"\ntime_unit = "us"\nmemory_unit = "B"\n']
    named = [name for name, used in (("network", layout.lanes), ("copy", layout.offloaded)) if used]
    lanes = f"lanes = {json.dumps(named)}\n" if named else ""
    text += [f'[[devices]]\nname = "device{d}"\n{lanes}' for d in range(devices)]
    stages = range(len(layout.ranks))
    text += [f'[[stages]]\nname = "s{s}"\nlayers = [{bounds[s]}, {bounds[s + 1]}]\n' for s in stages]
    for s in stages:
        size = bounds[s + 1] - bounds[s]
        after = f'"s{s - 1}.F"' if s else ""
        text.append(_block(s, "F", "forward", layout.devices(s), size * forward, after, s in layout.lanes))
    if not trains:
        return "\n".join(text).replace("memory = 2", "memory = 0")
    back, kind, share = ("I", "backward_input", 2) if layout.split else ("B", "backward", 1)
    for s in stages:
        time = (bounds[s + 1] - bounds[s]) * backward // share
        after = f'"s{s}.F"' + (f', "s{s + 1}.{back}"' if s + 1 in stages else "")
        if s in layout.offloaded:
            text += _offloading(s, layout.devices(s))
            after += f', "s{s}.L"'
        text.append(_block(s, back, kind, layout.devices(s), time, after, s in layout.lanes))
        if layout.split:
            text.append(_block(s, "W", "backward_weight", layout.devices(s), time, f'"s{s}.I"'))
    return "\n".join(text)


MEMORY = {"F": 2, "B": -2, "I": -1, "W": -1}


def _block(
    stage: int, letter: str, kind: str, devices: list[int], time: int, after: str, beside: bool = False
) -> str:
    where = 'lane = "network"\n' if beside else f"memory = {MEMORY[letter]}\n"
    return (
        f'[[blocks]]\nname = "s{stage}.{letter}"\nstage = "s{stage}"\nkind = "{kind}"\ndevices = {devices}\n'
        f"time = {time}\n{where}after = [{after}]\n"
    )


def _offloading(stage: int, devices: list[int]) -> list[str]:
    """The copies, and where the memory is given back and taken."""
    blocks, behind = [], f"s{stage}.F"
    for letter, kind, time, where in (
        ("O", "offload", 50, 'lane = "copy"'),
        ("freed", "offload", 1, "memory = -2"),
        ("taken", "load", 1, "memory = 2"),
        ("L", "load", 50, 'lane = "copy"'),
    ):
        blocks.append(
            f'[[blocks]]\nname = "s{stage}.{letter}"\nstage = "s{stage}"\nkind = "{kind}"\ndevices = {devices}\n'
            f'time = {time}\n{where}\nafter = ["{behind}"]\n'
        )
        behind = f"s{stage}.{letter}"
    return blocks


def without_block(name: str, text: str) -> str:
    """A placement of placement_text() that does not have this block."""
    head, *blocks = text.split("[[blocks]]")
    return "[[blocks]]".join([head, *(block for block in blocks if f'name = "{name}"' not in block)])


def make_plan(
    folder: Path, layout: Layout, layers: int, micro_batches: int, method="", text="", objective="makespan"
) -> Path:
    """Writes placement.toml and plan.json into `folder`; returns the plan. `text`: another placement of that
    shape."""
    folder.mkdir(parents=True, exist_ok=True)
    text, plan = text or placement_text(layout, layers), folder / "plan.json"
    (folder / "placement.toml").write_text(text)
    plan.write_bytes(_searched(text, micro_batches, method or layout.method, objective))
    return plan


@functools.cache
def _searched(placement: str, micro_batches: int, method: str, objective: str) -> bytes:
    """What plan.json holds; many tests ask for the same."""
    from ostinato import _search

    with tempfile.TemporaryDirectory() as name:
        path, plan = Path(name) / "placement.toml", Path(name) / "plan.json"
        path.write_text(placement)
        options = ["--micro-batches", str(micro_batches), "--method", method, "--objective", objective]
        status = _search.main(["search", str(path), *options, "--time-limit", "2", "--output", str(plan)])
        assert status == 0, f"ostinato search ended with status {status}"
        return plan.read_bytes()
