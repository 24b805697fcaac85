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
    bounds, stages = [0, *cuts, layers], []
    last = len(cuts)
    for i in range(last + 1):
        for copy, device in (("a", i), ("b", last - i)):
            stages.append(Stage(f"{copy}{i}", bounds[i], bounds[i + 1], (device,), (f"{copy}{i - 1}",) if i else ()))
    return stages


def placement_text(name: str, stages: list[Stage], split: bool = False, forward: int = 100, backward: int = 200) -> str:
    """Times are microseconds a layer, and bytes of any transfer are 64."""
    devices = 1 + max(d for stage in stages for d in stage.devices)
    text = [f'format = "ostinato-placement/1"\nname = "{name}"\ntime_unit = "us"\nmemory_unit = "B"\n']
    text += [f'[[devices]]\nname = "device{d}"\n' for d in range(devices)]
    text += [f'[[stages]]\nname = "{s.name}"\nlayers = [{s.first}, {s.end}]\n' for s in stages]
    back, kind, share = ("I", "backward_input", 2) if split else ("B", "backward", 1)
    for s in stages:
        size = s.end - s.first
        text.append(_block(s, "F", "forward", size * forward, [f"{i}.F" for i in s.inputs]))
        after = [f"{s.name}.F", *(f"{t.name}.{back}" for t in stages if s.name in t.inputs)]
        text.append(_block(s, back, kind, size * backward // share, after))
        if split:
            text.append(_block(s, "W", "backward_weight", size * backward // share, [f"{s.name}.I"]))
    return "\n".join(text)


def _block(stage: Stage, letter: str, kind: str, time: int, after: list[str]) -> str:
    inputs = ", ".join(f'{{ block = "{name}", bytes = 64 }}' for name in after)
    return (
        f'[[blocks]]\nname = "{stage.name}.{letter}"\nstage = "{stage.name}"\nkind = "{kind}"\n'
        f"devices = {list(stage.devices)}\ntime = {time}\nmemory = {MEMORY[letter]}\nafter = [{inputs}]\n"
    )
