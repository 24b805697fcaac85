# SPDX-License-Identifier: Apache-2.0
"""Placements whose stages are not one chain: two directions, branches that meet."""

from dataclasses import dataclass

from .plans import MEMORY


@dataclass(frozen=True)
class Stage:
    """Layers [first, end) on `devices`, fed by the stages `inputs`."""

    name: str
    first: int
    end: int
    devices: tuple[int, ...]
    inputs: tuple[str, ...] = ()


def two_directions(cuts: tuple[int, ...], layers: int) -> list[Stage]:
    """X: stage i of one copy of the model is on device i, of the other on the last but i."""
    bounds = [0, *cuts, layers]
    return mirrored(
        [
            Stage(f"{i}", bounds[i], bounds[i + 1], (i,), (f"{i - 1}",) if i else ())
            for i in range(len(cuts) + 1)
        ]
    )


def mirrored(stages: list[Stage]) -> list[Stage]:
    """The stages, and once more with the devices in the reverse order, for the other direction."""
    last, made = max(device for stage in stages for device in stage.devices), []
    for stage in stages:
        turned = tuple(sorted(last - device for device in stage.devices))
        for copy, devices in (("a", stage.devices), ("b", turned)):
            made.append(
                Stage(
                    copy + stage.name,
                    stage.first,
                    stage.end,
                    devices,
                    tuple(copy + name for name in stage.inputs),
                )
            )
    return made


def placement_text(
    name: str,
    stages: list[Stage],
    split: bool = False,
    forward: int = 100,
    backward: int = 200,
    trains: bool = True,
    recompute: bool = False,
) -> str:
    """Times are microseconds a layer, and bytes of any transfer are 64. Not `trains`: forwards only.
    `recompute`: every stage drops what its forward made.
    """
    devices = 1 + max(d for stage in stages for d in stage.devices)
    text = [f'format = "ostinato-placement/1"\nname = "{name}"\ntime_unit = "us"\nmemory_unit = "B"\n']
    text += [f'[[devices]]\nname = "device{d}"\n' for d in range(devices)]
    for s in stages:
        dropped = "recompute = true\n" if recompute else ""
        text.append(f'[[stages]]\nname = "{s.name}"\nlayers = [{s.first}, {s.end}]\n{dropped}')
    back, kind, share = ("I", "backward_input", 2) if split else ("B", "backward", 1)
    for s in stages:
        size = s.end - s.first
        text.append(
            _block(s, "F", "forward", size * forward, [f"{i}.F" for i in s.inputs], MEMORY["F"] * trains)
        )
        if not trains:
            continue
        after = [f"{s.name}.F", *(f"{t.name}.{back}" for t in stages if s.name in t.inputs)]
        text.append(_block(s, back, kind, size * backward // share, after, MEMORY[back]))
        if split:
            text.append(
                _block(s, "W", "backward_weight", size * backward // share, [f"{s.name}.I"], MEMORY["W"])
            )
    return "\n".join(text)


def _block(stage: Stage, letter: str, kind: str, time: int, after: list[str], memory: int) -> str:
    inputs = ", ".join(f'{{ block = "{name}", bytes = 64 }}' for name in after)
    return (
        f'[[blocks]]\nname = "{stage.name}.{letter}"\nstage = "{stage.name}"\nkind = "{kind}"\n'
        f"devices = {list(stage.devices)}\ntime = {time}\nmemory = {memory}\nafter = [{inputs}]\n"
    )
