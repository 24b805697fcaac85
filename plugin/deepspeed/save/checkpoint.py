# SPDX-License-Identifier: Apache-2.0
"""Which placement a checkpoint's optimizer state belongs to.

Layer files are per layer, and those of sharded layers whole, so weights load under any placement. Optimizer state is per rank, and DeepSpeed would load it
for other layers without noticing: a file `ostinato.json` beside it names the layers of each pipeline rank. A checkpoint
without that file was written by DeepSpeed alone, under its own partition of the same model.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

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


def sharded_layers(stages: list[Stage]) -> list[int]:
    """Those of which each of their ranks holds a part."""
    return sorted({layer for stage in stages if stage.sharded for layer in stage.layers})


def directions(stages: list[Stage]) -> dict[str, list[list[int]]]:
    """The ranks of sharded layers that are on others for each direction, by layer."""
    ranks = {i: sorted({stage.ranks for stage in stages if i in stage.layers}) for i in sharded_layers(stages)}
    return {str(layer): [list(r) for r in of_layer] for layer, of_layer in ranks.items() if len(of_layer) > 1}


def write(save_dir: str, tag: str, stages: list[Stage]) -> None:
    """Rank 0 writes it before the rest of the checkpoint."""
    record = {"format": FORMAT, "layers": layers_of_ranks(stages), "copies": copies_of(stages), "sharded": sharded_layers(stages)}
    if several := directions(stages):
        record["directions"] = several
    write_text(Path(save_dir) / tag / NAME, json.dumps(record) + "\n")


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
    alone = _Held(_of_partition(parts))
    saved = _saved(folder) or alone
    held = _Held(layers_of_ranks(stages), copies_of(stages), sharded_layers(stages), directions(stages))
    if saved != held:
        by = "another placement" if (folder / NAME).is_file() else "DeepSpeed's own partition"
        raise OstinatoError(_words(folder, by, saved, "this plan's ranks hold", held))


def check_alone(load_dir: str, tag: str | None, parts: list[int]) -> None:
    """check() for an engine of DeepSpeed alone, whose ranks hold the layers between `parts`."""
    folder = _folder(load_dir, tag)
    saved = _saved(folder) if folder is not None else None
    held = _Held(_of_partition(parts))
    if folder is not None and saved is not None and saved != held:
        raise OstinatoError(_words(folder, "a placement of ostinato's", saved, "without its plan ranks hold", held))


@dataclass
class _Held:
    """What optimizer state belongs to: the layers of each pipeline rank, how many copies of the model, sharded layers, directions()."""

    layers: list[list[int]]
    copies: int = 1
    sharded: list[int] = field(default_factory=list)
    directions: dict[str, list[list[int]]] = field(default_factory=dict)


def _of_partition(parts: list[int]) -> list[list[int]]:
    return [list(range(a, b)) for a, b in zip(parts, parts[1:], strict=False)]


def _saved(folder: Path) -> _Held | None:
    """None where DeepSpeed alone has written the checkpoint."""
    path = folder / NAME
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise OstinatoError(f"{path}: format {record.get('format')!r}, and this version reads {FORMAT!r}")
    return _Held(record["layers"], record["copies"], record["sharded"], record.get("directions", {}))


def _words(folder: Path, by: str, saved: _Held, here: str, held: _Held) -> str:
    convert = CONVERT if any(folder.glob("*_optim_states.pt")) else ""  # without ZeRO there is nothing that ds_to_universal reads
    return (
        f"{folder} holds optimizer state of {by} (layers of its ranks: {saved.layers}), and {here} "
        f"{held.layers}. For the weights alone, load_checkpoint(..., load_optimizer_states=False){convert}"
    )


def _folder(load_dir: str, tag: str | None) -> Path | None:
    if tag is None:
        latest = Path(load_dir) / LATEST
        if not latest.is_file():
            return None
        tag = latest.read_text().strip()
    return Path(load_dir) / str(tag)
