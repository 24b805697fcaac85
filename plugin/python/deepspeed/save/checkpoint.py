# SPDX-License-Identifier: Apache-2.0
"""Which placement a checkpoint's optimizer state belongs to.

There is a file per layer, which holds sharded layers whole, so weights load under any placement. Optimizer
state is per rank, and seal keeps DeepSpeed alone from loading it into the wrong layers. A file `ostinato.json`
beside it names the layers of each pipeline rank, the parameters that its optimizer steps (with which
optimizer_state reads them for other ranks), and how DeepSpeed would cut the model (partition). A checkpoint
without that file was written by DeepSpeed alone, under its own partition of the same model.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from ostinato.files import write_text
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import from_json

from ..errors import OstinatoError
from ..section.plans import Stage, copies_of
from ..upstream import Engine
from . import partition
from .parts import Part, Parts

FORMAT = "ostinato-checkpoint/1"
NAME = "ostinato.json"
HELD = ("format", "layers", "copies", "sharded", "directions")  # of it, what held_by() returns
OF_RANKS = "*mp_rank_*_states.pt"  # names of files of ranks
LATEST = "latest"  # DeepSpeed's
IDLE = "ostinato_idle"  # the parameter of a rank with nothing to train (stages.idle)
ALONE = "_ostinato_alone"  # in an engine that runs DeepSpeed's own schedule in place of a plan
Names = list[list[tuple[str, list[int]]]]  # by parameter group: name and shape, in the optimizer's order
WEIGHTS = "To load only the weights: load_checkpoint(..., load_optimizer_states=False, load_lr_scheduler_states=False)"
CONVERT = (
    '; to keep it, run ds_to_universal --inject_missing_state and set "checkpoint": {"load_universal": true}'
)
EXPERTS, BY_RANK = "a model with experts", "DeepSpeed saves its weights by rank, too"
SAME = "Load it under the placement that saved it"
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Facts(BaseModel, strict=True):
    """What partition.facts_of() has returned."""

    bounds: list[Count] = Field(min_length=2)
    weights: list[Count] | None
    files: list[Count]
    tied: dict[str, list[Count]]


class _Record(BaseModel, strict=True):
    """ostinato.json, which comes from a disk that may be full, or from a hand."""

    layers: list[list[Count]]
    copies: Count
    sharded: list[Count]
    directions: dict[str, list[list[Count]]] = {}
    model: _Facts | None = None
    parameters: list[list[list[tuple[str, list[Count]]]]] = []
    parts: list[dict[str, tuple[Count, Count, Count, list[Count]]]] = []
    files: dict[str, str] | None = None

    @model_validator(mode="after")
    def _of_each_rank(self) -> "_Record":
        if "parameters" in self.model_fields_set and len(self.parameters) < len(self.layers):
            raise ValueError(f"parameters of {len(self.parameters)} ranks, but layers of {len(self.layers)}")
        return self


def layers_of_ranks(stages: list[Stage]) -> list[list[int]]:
    """The layers of each pipeline rank, in model order."""
    ranks = 1 + max(rank for stage in stages for rank in stage.ranks)
    return [sorted({i for c in stages if c.on(rank) for i in c.layers}) for rank in range(ranks)]


def held_by(stages: list[Stage]) -> dict[str, Any]:
    """What optimizer state belongs to: the layers of each pipeline rank, the number of copies of the model,
    which layers are sharded, and the ranks of sharded layers that are on different ranks in each direction.
    """
    sharded = sorted({layer for stage in stages if stage.sharded for layer in stage.layers})
    ranks = {
        str(i): [list(of) for of in sorted({stage.ranks for stage in stages if i in stage.layers})]
        for i in sharded
    }
    directions = {layer: of_layer for layer, of_layer in ranks.items() if len(of_layer) > 1}
    held = {
        "format": FORMAT,
        "layers": layers_of_ranks(stages),
        "copies": copies_of(stages),
        "sharded": sharded,
    }
    return held | ({"directions": directions} if directions else {})


def held_alone(parts: list[int]) -> dict[str, Any]:
    """The same for DeepSpeed's own partition. `parts`: the bounds of its ranks."""
    return {
        "format": FORMAT,
        "layers": [list(range(a, b)) for a, b in pairwise(parts)],
        "copies": 1,
        "sharded": [],
    }


def write(
    save_dir: str,
    tag: str,
    stages: list[Stage],
    names: list[Names | None],
    parts: list[Parts],
    facts: dict[str, Any],
    finishes: bool = True,
) -> None:
    """Writes ostinato.json, on rank 0, before the rest of the checkpoint; if `finishes`, it is complete after
    finish() only. `names`: of each pipeline rank's optimizer; None where DeepSpeed's files have them. `parts`: of
    each, the parameters that it holds in part. `facts`: of the model, from `partition`.
    """
    record = held_by(stages) | {"model": facts} | ({} if None in names else {"parameters": names})
    record |= ({"parts": parts} if any(parts) else {}) | ({"files": None} if finishes else {})
    write_text(Path(save_dir) / tag / NAME, json.dumps(record) + "\n")


def finish(folder: Path, files: dict[str, str]) -> None:
    """Once all ranks have written, on rank 0: the digests of all `files`. Removes files of ranks that an earlier
    save under this tag had, and this one has not."""
    record = json.loads((folder / NAME).read_text())
    write_text(folder / NAME, json.dumps(record | {"files": files}) + "\n")
    for path in folder.glob(OF_RANKS):
        if path.name not in files:
            path.unlink()


def clear(save_dir: str, tag: str) -> None:
    """Before DeepSpeed alone saves under a tag that a plan has saved before, on rank 0: removes ostinato.json, which
    would not describe the new files, and the ranks' files, as DeepSpeed alone may have fewer."""
    folder = Path(save_dir) / tag
    if (folder / NAME).is_file():
        (folder / NAME).unlink()
        for path in folder.glob(OF_RANKS):
            path.unlink()


def write_latest(save_dir: str, tag: str) -> None:
    """Writes the tag that load_checkpoint() loads by default, on rank 0, after the whole checkpoint."""
    write_text(Path(save_dir) / LATEST, tag)


def reads_weights_by_rank(engine: Engine) -> bool:
    """Whether engine.load_checkpoint() reads weights from the files of ranks, not of layers: of a model with experts
    DeepSpeed saves no files of layers."""
    return engine.has_moe_layers and not engine.load_universal_checkpoint()


def reads_optimizer(engine, wanted: bool, module_only: bool) -> bool:
    """Whether engine.load_checkpoint() with these arguments reads optimizer state from the files of ranks,
    no matter which layers they had."""
    return wanted and not module_only and not engine.load_universal_checkpoint()


@dataclass(frozen=True)
class Saved:
    """A checkpoint. `held`: what its optimizer state belongs to; `now`: what ranks hold; `names`: of each
    pipeline rank's optimizer, where DeepSpeed's files do not have them; `recorded`: it has an ostinato.json;
    `parts`: of each pipeline rank, the parameters that it held in part; `experts`: the model has some.
    """

    folder: Path
    held: dict[str, Any]
    now: dict[str, Any]
    recorded: bool
    experts: bool
    names: list[Names] | None = None
    parts: list[Parts] = field(default_factory=list)

    @property
    def moved(self) -> bool:
        return self.held != self.now

    def refused(self, why: str) -> OstinatoError:
        by = (
            ("a different placement" if self.moved else "this placement")
            if self.recorded
            else "DeepSpeed's own partition"
        )
        by_rank = self.experts and self.moved  # the weights, too
        what, advice = (EXPERTS, SAME) if by_rank else ("optimizer state", _advice(self.folder))
        return OstinatoError(
            f"{self.folder}: {what} from {by} (layers by rank: {self.held['layers']}) cannot be loaded by ranks that hold "
            f"{self.now['layers']}: {why}. {advice}"
        )


def found(load_dir: str, tag: str | None, now: dict[str, Any], engine: Engine) -> Saved | None:
    """The checkpoint that load_checkpoint() would read; None where there is none, which DeepSpeed reports
    itself. `now`: what ranks hold. All ranks must call it.

    Raises OstinatoError where ranks had different layers, and optimizer state cannot be read for these.
    """
    facts, slices = partition.facts_of(engine.module), engine.grid.slice_parallel_size
    folder = folder_of(load_dir, tag)
    if folder is None or not folder.is_dir():
        return None
    if (record := recorded(folder)) is not None:
        names, parts = record.get("parameters"), parts_in(record)
        saved = Saved(folder, held_in(record), now, True, engine.has_moe_layers, names, parts)
    else:
        stages = engine.num_stages
        written, left = divmod(len(list(folder.glob("mp_rank_*_model_states.pt"))), slices)
        bounds = partition.parts(facts, written or stages)
        saved = Saved(folder, held_alone(bounds or facts["bounds"]), now, False, engine.has_moe_layers)
        if bounds is None or left:
            raise saved.refused(
                f"{written} pipeline ranks wrote it without saying which layers they had, but this run has {stages}"
            )
    if saved.moved and slices_in(folder) not in (None, slices):
        raise saved.refused(f"each layer was in {slices_in(folder)} tensor slices, but is in {slices} now")
    if saved.moved and saved.experts:
        raise saved.refused(BY_RANK)
    return saved


def check_alone(load_dir: str, tag: str | None, engine: Engine) -> None:
    """For an engine of DeepSpeed alone. Raises OstinatoError where the checkpoint's ranks had different layers."""
    folder, now = folder_of(load_dir, tag), held_alone(engine.module.parts)
    record = recorded(folder) if folder is not None else None
    if folder is not None and record is not None and held_in(record) != now:
        if engine.has_moe_layers:
            raise Saved(folder, held_in(record), now, True, True).refused(BY_RANK)
        raise OstinatoError(
            f"{folder}: this optimizer state belongs to an ostinato placement (layers by rank: {record['layers']}), but without a plan ranks hold "
            f"{now['layers']}. Convert it (ostinato checkpoint convert), or load only the weights: load_checkpoint(..., load_optimizer_states=False)"
        )


def held_in(record: dict[str, Any]) -> dict[str, Any]:
    """What held_by() returned when the checkpoint was written."""
    return {key: record[key] for key in HELD if key in record}


def parts_in(record: dict[str, Any]) -> list[Parts]:
    """By pipeline rank, the parameters that it held in part."""
    return [{name: Part(*part) for name, part in of_rank.items()} for of_rank in record.get("parts", ())]


def holders(held: dict[str, Any], layer: int | None) -> list[int]:
    """The pipeline ranks that held a layer; for a sharded one, the first direction's."""
    ranks = [rank for rank, layers in enumerate(held["layers"]) if layer in layers]
    return held.get("directions", {}).get(str(layer), [ranks])[0]


def slices_in(folder: Path) -> int | None:
    """The number of tensor slices in which layers were; None where their files are missing."""
    of_layers = Counter(path.name.split("-")[0] for path in folder.glob("layer_*-model_states.pt"))
    return max(of_layers.values(), default=None)


def recorded(folder: Path) -> dict[str, Any] | None:
    """The checkpoint's ostinato.json; None where DeepSpeed alone has written it."""
    path = folder / NAME
    if not path.is_file():
        return None
    text = path.read_bytes()
    try:
        record = from_json(text)
        if isinstance(record, dict) and record.get("format") != FORMAT:
            raise OstinatoError(
                f"{path} has format {record.get('format')!r}, but this version reads {FORMAT!r}"
            )
        _Record.model_validate_json(text)
    except ValueError as error:
        wrong = error.errors()[0] if isinstance(error, ValidationError) else None
        why = ": ".join(filter(None, [".".join(map(str, wrong["loc"])), wrong["msg"]])) if wrong else error
        raise OstinatoError(
            f"{path} cannot be read: it is incomplete, or not written by ostinato ({why})"
        ) from None
    return record


def _advice(folder: Path) -> str:
    # Without ZeRO there is nothing that ds_to_universal reads.
    convert = CONVERT if any(folder.glob("*_optim_states.pt")) else ""
    return f"{WEIGHTS}{convert}"


def folder_read(engine: Engine, load_dir: str, tag: str | None) -> Path | None:
    """That engine.load_checkpoint() reads; None of a universal checkpoint, which has another `latest` and no record."""
    return None if engine.load_universal_checkpoint() else folder_of(load_dir, tag)


def folder_of(load_dir: str, tag: str | None) -> Path | None:
    if tag is None and (tag := latest_in(Path(load_dir))) is None:
        return None
    return Path(load_dir) / str(tag)


def latest_in(load_dir: Path) -> str | None:
    """The tag that load_checkpoint() loads by default; of a damaged file, one that does not exist."""
    path = load_dir / LATEST
    return path.read_text(errors="replace").strip() if path.is_file() else None
