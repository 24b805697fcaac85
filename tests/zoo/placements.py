# SPDX-License-Identifier: Apache-2.0
"""Where the zoo's models run: name → the "ostinato" section for a model."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.plans import Layout, make_plan
from support.shapes import Stage, placement_text, two_directions
from support.worlds import run_alone

from .model import Model

MICRO_BATCHES = 4
TIMEOUT_S = 30  # of a rank that waits for another one; longer, and the process ends that misses a sign of the one that refuses


@dataclass(frozen=True)
class Placement:
    """`section(model, folder)`; files go into `folder`. `ranks`: so many processes. `shards`: for models that
    can be cut only."""

    name: str
    section: Callable[[Model, Path], dict]
    ranks: int = 2
    shards: bool = False
    optimizer: str | None = None  # in the place of the model's


def cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Where DeepSpeed's "uniform" cuts."""
    size, more = divmod(layers, stages)
    return tuple(size * stage + min(stage, more) for stage in range(1, stages))


def _searched(
    text: str, layers: int, folder: Path, method: str = "auto", micro_batches: int = MICRO_BATCHES
) -> dict:
    plan = make_plan(folder, Layout("unused", (), ()), layers, micro_batches, method=method, text=text)
    return {"plan": str(plan), "timeout_s": TIMEOUT_S}


def planned(
    bounds: tuple, ranks: tuple, folder: Path, name="drawn", split=False, recompute=False, method="auto"
) -> dict:
    """Stages one after the other: stage i holds the layers from bounds[i] to bounds[i + 1] on ranks[i]."""
    stages = [
        Stage(
            f"s{i}",
            bounds[i],
            bounds[i + 1],
            rank if isinstance(rank, tuple) else (rank,),
            (f"s{i - 1}",) if i else (),
        )
        for i, rank in enumerate(ranks)
    ]
    return _searched(
        placement_text(name, stages, split=split, recompute=recompute), bounds[-1], folder, method
    )


def chain(
    name: str, ranks: tuple, where=None, split=False, recompute=False, method="auto", **more
) -> Placement:
    """Stages one after the other on `ranks`; `where(layers, stages)` cuts."""

    def section(model: Model, folder: Path) -> dict:
        layers = model.layer_count()
        bounds = (0, *(where or cuts)(layers, len(ranks)), layers)
        return planned(bounds, ranks, folder, name, split, recompute, method)

    used = {r for rank in ranks for r in (rank if isinstance(rank, tuple) else (rank,))}
    return Placement(name, section, ranks=len(used), **more)


def early(layers: int, stages: int) -> tuple[int, ...]:
    """The first stage has one layer, the others share the rest."""
    return tuple(1 + cut for cut in (0, *cuts(layers - 1, stages - 1)))


def ends(layers: int, stages: int) -> tuple[int, ...]:
    """One layer in the first and in the last stage."""
    return (1, *(1 + cut for cut in cuts(layers - 2, stages - 2)), layers - 1)


def finer(layers: int, stages: int) -> tuple[int, ...]:
    """DeepSpeed's own border, and one in the half before it."""
    half = cuts(layers, 2)[0]
    return half - 1, half


def _both_ways(model: Model, folder: Path) -> dict:
    layers = model.layer_count()
    text = placement_text("two directions", two_directions(cuts(layers, 2), layers))
    return _searched(text, layers, folder, micro_batches=MICRO_BATCHES // 2)


def _auto(model: Model, folder: Path) -> dict:
    return {"auto": True, "fallback": False, "search": {"time_limit": 2}, "timeout_s": TIMEOUT_S}


def _profiled(model: Model, folder: Path) -> dict:
    """What a user does: `ostinato profile` on the script, and the profile in the section."""
    script, profile = folder / "train.py", folder / "profile.json"
    script.write_text(SCRIPT.format(path=sys.path, name=model.name))
    run_alone(
        profile_script,
        ["--world-size", "2", "--repeats", "3", "--warm-up", "1", "--output", str(profile), str(script)],
    )
    return {"profile": str(profile), "search": {"time_limit": 2}, "timeout_s": TIMEOUT_S}


SCRIPT = """import sys
sys.path[:] = {path!r}
import deepspeed
deepspeed.init_distributed()
from zoo.trainings import train_named
train_named({name!r}, None)
"""


def profile_script(words: list[str]) -> None:
    from ostinato.profile import main

    if status := main(words):
        raise AssertionError(f"ostinato profile ended with {status}")


PLACEMENTS = {
    placement.name: placement
    for placement in (
        chain("1F1B's own", (0, 1)),
        chain("uneven", (0, 1), early),
        chain("finer", (0, 1, 1), finer),
        chain("swapped", (1, 0)),
        chain("looped", (0, 1, 0, 1)),
        chain("wave", (0, 1, 1, 0)),
        chain("split", (0, 1), split=True, method="zb-h1"),
        chain("split, wave", (0, 1, 1, 0), split=True),
        chain("recompute", (0, 1), recompute=True),
        chain("recompute, wave", (0, 1, 1, 0), recompute=True),
        chain("shards", ((0, 1), 0, 1, (0, 1)), ends, shards=True, optimizer="SGD"),
        Placement("two directions", _both_ways, optimizer="SGD"),
        Placement("auto", _auto),
        Placement("profiled", _profiled),
        chain("four ranks", (2, 0, 3, 1, 2)),
    )
}
