# SPDX-License-Identifier: Apache-2.0
"""Which placement a checkpoint's optimizer state belongs to.

Layer files are per layer, and those of sharded layers whole, so weights load under any placement. Optimizer state is per rank, and DeepSpeed would load it
for other layers without noticing: a file `ostinato.json` beside it names the layers of each pipeline rank. A checkpoint
without that file was written by DeepSpeed alone, under its own partition of the same model.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from ostinato.files import write_text

from ..errors import OstinatoError
from ..section.plans import Stage, copies_of

FORMAT = "ostinato-checkpoint/1"
NAME = "ostinato.json"
LATEST = "latest"  # DeepSpeed's
CONVERT = '; to convert, ds_to_universal --inject_missing_state, then "checkpoint": {"load_universal": true}'


def layers_of_ranks(stages: list[Stage]) -> list[list[int]]:
    """Per pipeline rank its layers, in model order."""
    ranks = 1 + max(rank for stage in stages for rank in stage.ranks)
    return [sorted({i for c in stages if c.on(rank) for i in c.layers}) for rank in range(ranks)]


def _held(stages: list[Stage]) -> dict[str, Any]:
    """What optimizer state belongs to: the layers of each pipeline rank, in how many copies of the model, which of them are sharded, and the ranks
    of those that are on others for each direction.
    """
    sharded = sorted({layer for stage in stages if stage.sharded for layer in stage.layers})
    ranks = {str(i): [list(of) for of in sorted({stage.ranks for stage in stages if i in stage.layers})] for i in sharded}
    directions = {layer: of_layer for layer, of_layer in ranks.items() if len(of_layer) > 1}
    held = {"format": FORMAT, "layers": layers_of_ranks(stages), "copies": copies_of(stages), "sharded": sharded}
    return held | ({"directions": directions} if directions else {})


def _held_alone(parts: list[int]) -> dict[str, Any]:
    """The same in DeepSpeed's own partition, by the bounds of its ranks."""
    return {"format": FORMAT, "layers": [list(range(a, b)) for a, b in pairwise(parts)], "copies": 1, "sharded": []}


def write(save_dir: str, tag: str, stages: list[Stage]) -> None:
    """Rank 0 writes it before the rest of the checkpoint."""
    write_text(Path(save_dir) / tag / NAME, json.dumps(_held(stages)) + "\n")


def write_latest(save_dir: str, tag: str) -> None:
    """What load_checkpoint() loads where it is given no tag. Rank 0 writes it after the whole checkpoint."""
    write_text(Path(save_dir) / LATEST, tag)


def reads_optimizer(engine, wanted: bool, module_only: bool) -> bool:
    """Whether load_checkpoint() of `engine` with these arguments reads optimizer state as ranks have written it, which check() is for."""
    return wanted and not module_only and not engine.load_universal_checkpoint()


def check(load_dir: str, tag: str | None, stages: list[Stage], parts: list[int]) -> None:
    """Raises OstinatoError where the optimizer state in the checkpoint belongs to other layers than ranks hold under the plan. `parts`:
    bounds of the ranks in DeepSpeed's own partition.
    """
    folder = _folder(load_dir, tag)
    if folder is None or not folder.is_dir():
        return  # DeepSpeed says what it thinks of that
    saved, held = _saved(folder) or _held_alone(parts), _held(stages)
    if saved != held:
        by = "another placement" if (folder / NAME).is_file() else "DeepSpeed's own partition"
        raise OstinatoError(_words(folder, by, saved, "this plan's ranks hold", held))


def check_alone(load_dir: str, tag: str | None, parts: list[int]) -> None:
    """check() for an engine of DeepSpeed alone, whose ranks hold the layers between `parts`."""
    folder, held = _folder(load_dir, tag), _held_alone(parts)
    saved = _saved(folder) if folder is not None else None
    if folder is not None and saved is not None and saved != held:
        raise OstinatoError(_words(folder, "a placement of ostinato's", saved, "without its plan ranks hold", held))


def _saved(folder: Path) -> dict[str, Any] | None:
    """None where DeepSpeed alone has written the checkpoint."""
    path = folder / NAME
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise OstinatoError(f"{path}: format {record.get('format')!r}, and this version reads {FORMAT!r}")
    return record


def _words(folder: Path, by: str, saved: dict[str, Any], here: str, held: dict[str, Any]) -> str:
    convert = CONVERT if any(folder.glob("*_optim_states.pt")) else ""  # without ZeRO there is nothing that ds_to_universal reads
    return (
        f"{folder} holds optimizer state of {by} (layers of its ranks: {saved['layers']}), and {here} "
        f"{held['layers']}. For the weights alone, load_checkpoint(..., load_optimizer_states=False){convert}"
    )


def _folder(load_dir: str, tag: str | None) -> Path | None:
    if tag is None:
        latest = Path(load_dir) / LATEST
        if not latest.is_file():
            return None
        tag = latest.read_text().strip()
    return Path(load_dir) / str(tag)
