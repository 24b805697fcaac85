# SPDX-License-Identifier: Apache-2.0
"""What is in a checkpoint of DeepSpeed's pipeline engine, and whether it is whole.

    folder = chosen(Path("checkpoints"), tag=None)      # what `latest` names
    contents = read(folder)
    contents.problems                                   # files that are missing, incomplete, or from a different step; [] where it is whole

Files are unpickled, as load_checkpoint() does, and memory-mapped: no tensor is read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deepspeed.checkpoint import constants
from ostinato.errors import counted

from ..errors import OstinatoError
from .tensor_names import layer_of
from . import checkpoint, digests
from .optimizer_files import APART, FLAT, SHARE, opened
from .seal import inner_of, is_sealed, unsealed

LAYER = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")
EXPERTS = re.compile(r"layer_\d+_expert_\d+_.*|expp_rank_.*")
PRECISIONS = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
}
# Keys of DeepSpeed's, which 0.19.4 does not write yet.
DIMENSIONS, SLICES, STAGES = "checkpoint_parallel_dimensions", "tp_degree", "pp_degree"


@dataclass
class SavedLayer:
    index: int
    parameters: int
    bytes: int
    ranks: list[int]  # pipeline ranks that held it; DeepSpeed alone does not say so without ZeRO


@dataclass
class Contents:
    folder: Path
    record: dict[str, Any] | None  # ostinato.json
    heads: dict[int, dict] = field(default_factory=dict)  # by rank: its mp_rank file
    # What ZeRO's optimizer has saved, by rank and replica.
    shares: dict[tuple[int, int], dict] = field(default_factory=dict)
    layers: list[SavedLayer] = field(default_factory=list)
    precisions: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @cached_property
    def head(self) -> dict:
        """The mp_rank file of the first rank."""
        return self.heads[min(self.heads)]

    @property
    def replicas(self) -> int:
        return self.head["dp_world_size"]

    @property
    def slices(self) -> int:
        known = self.head.get(DIMENSIONS)
        return known[SLICES] if known else checkpoint.slices_in(self.folder) or 1

    @property
    def stages(self) -> int:
        return self.head["mp_world_size"] // self.slices

    @property
    def facts(self) -> dict[str, Any] | None:
        """The facts of the model that `partition` has recorded."""
        return (self.record or {}).get("model")

    @property
    def own_partition(self) -> bool | None:
        """Whether layers were placed as in DeepSpeed's own partition; None where that is not known."""
        return (
            None
            if self.facts is None
            else checkpoint.held_in(self.record or {}) == checkpoint.held_alone(self.facts["bounds"])
        )

    @property
    def kind(self) -> str | None:
        """The kind of optimizer, as optimizer_files names it; None without one."""
        held = unsealed(self.head.get("optimizer"))
        if held is None:
            return SHARE if self.head.get("param_shapes") is not None else None
        return next((kind for kind in (SHARE, FLAT, APART) if kind in held), "")

    @property
    def zero(self) -> int:
        share = next(iter(self.shares.values()), {})
        return int(share.get(constants.ZERO_STAGE, 1)) if self.head.get("param_shapes") is not None else 0

    @property
    def precision(self) -> str:
        return ", ".join(sorted(self.precisions)) or "–"

    @property
    def optimizer(self) -> str:
        """The optimizer, by configuration and state."""
        if self.kind is None:
            return "none"
        config = self.head.get("ds_config")
        named = config.get("optimizer", {}).get("type") if isinstance(config, dict) else None
        held = unsealed(next(iter(self.shares.values()), None) or self.head.get("optimizer")) or {}
        inner = inner_of(held)
        keys = next(
            (sorted(state) for state in inner.get("state", {}).values() if isinstance(inner, dict) and state),
            [],
        )
        return f"{named or 'made by the script'} ({', '.join(keys) or 'no state'})"

    def main(self, rank: int) -> str:
        return f"mp_rank_{rank:02d}_model_states.pt"

    def share(self, rank: int, replica: int) -> str:
        prefix = "bf16_" if self.precisions == {"bf16"} else ""
        return f"{prefix}zero_pp_rank_{replica}_mp_rank_{rank:02d}_optim_states.pt"


def tags_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and _is_checkpoint(path))


def _is_checkpoint(folder: Path) -> bool:
    return any(folder.glob("mp_rank_*_model_states.pt")) or any(
        LAYER.fullmatch(path.name) for path in folder.glob("layer_*")
    )


def chosen(root: Path, tag: str | None) -> Path:
    """The folder of one checkpoint. `root`: the folder that save_checkpoint() was given, or the checkpoint's
    own. Raises OstinatoError where there is none."""
    if not root.is_dir():
        is_file = "this is a file; give the folder that save_checkpoint() was given"
        raise OstinatoError(f"{root}: {is_file if root.exists() else 'no such folder'}")
    if _is_checkpoint(root) and tag is None:
        return root
    if not (tags := tags_in(root)):
        raise OstinatoError(
            f"{root} holds no checkpoint of DeepSpeed's pipeline engine: no mp_rank_*_model_states.pt or layer files, here or one folder below"
        )
    said = f"there is {', '.join(tags)}"
    latest = checkpoint.latest_in(root) if tag is None else None
    if latest is not None:
        tag, where = latest, f"{root / checkpoint.LATEST} names "
    elif tag is None and len(tags) > 1:
        raise OstinatoError(f"{root} has no file {checkpoint.LATEST!r}: choose a tag with --tag; {said}")
    else:
        tag, where = tags[0] if tag is None else tag, f"{root}: "
    if tag not in tags:
        raise OstinatoError(f"{where}tag {tag!r}, which does not exist; {said}")
    return root / tag


def read(folder: Path) -> Contents:
    """Raises OstinatoError where no file shows what checkpoint this is."""
    made = Contents(folder, checkpoint.recorded(folder))
    present = {path.name for path in folder.iterdir()}
    if experts := sorted(name for name in present if EXPERTS.fullmatch(name)):
        raise OstinatoError(
            f"{folder}: {experts[0]}: this command cannot read the separate files of layers with experts"
        )
    mains = sorted(
        int(name.split("_")[2]) for name in present if re.fullmatch(r"mp_rank_\d+_model_states\.pt", name)
    )
    for rank in mains:
        if (held := _try(made, made.main(rank), present)) is not None:
            made.heads[rank] = held
    if not made.heads:
        raise OstinatoError(
            f"{folder}: {made.problems[0] if made.problems else made.main(0) + ' is missing'}"
        )
    try:
        _read_layers(made, present)
        _read_ranks(made, present, mains)
        _read_record(made, present)
    except (KeyError, TypeError, AttributeError) as error:
        raise OstinatoError(
            f"{folder}: {made.main(min(made.heads))} is not from DeepSpeed's pipeline engine ({type(error).__name__}: {error})"
        ) from None
    return made


def _try(made: Contents, name: str, present: set[str]) -> dict | None:
    if name not in present:
        made.problems.append(f"{name} is missing")
        return None
    try:
        return opened(made.folder / name)
    except OstinatoError as error:
        made.problems.append(str(error))
        return None


def _read_layers(made: Contents, present: set[str]) -> None:
    ranks_of: dict[int, list[int]] = {}
    held = (
        dict(enumerate(made.record["layers"]))
        if made.record
        else {rank: map(layer_of, _names(made, rank)) for rank in made.heads}
    )
    for rank, layers in held.items():
        for layer in sorted({layer for layer in layers if layer is not None}):
            ranks_of.setdefault(layer, []).append(rank)
    known = made.record is not None or made.head.get("param_shapes") is not None
    files: dict[int, list[str]] = {}
    for name in sorted(present):
        if match := LAYER.fullmatch(name):
            files.setdefault(int(match[1]), []).append(name)
    expected = made.facts["files"] if made.facts else [] if made.record or made.slices > 1 else list(ranks_of)
    for layer in sorted({*files, *expected}):
        names = files.get(layer) or [f"layer_{layer:02d}-model_states.pt"]
        made.problems += (
            [f"{names[0]}: this layer has {len(names)} files, but {counted(made.slices, 'slice')}"]
            if 1 < len(names) != made.slices
            else []
        )
        states = [state for name in names if (state := _try(made, name, present)) is not None]
        tensors = [
            (key, value) for state in states for key, value in state.items() if hasattr(value, "numel")
        ]
        buffers = {name.split(".", 1)[1] for name in _buffers(made) if layer_of(name) == layer}
        weights = [value for key, value in tensors if key not in buffers]
        made.precisions |= {PRECISIONS[said] for value in weights if (said := str(value.dtype)) in PRECISIONS}
        count = sum(value.numel() for value in weights)
        size = sum((made.folder / name).stat().st_size for name in names if name in present)
        made.layers.append(SavedLayer(layer, count, size, ranks_of.get(layer, []) if known else []))


def _read_record(made: Contents, present: set[str]) -> None:
    """Notes files of another save than ostinato.json."""
    sealed = (is_sealed(head.get("optimizer")) for head in made.heads.values())
    if made.record is None and any(sealed):
        made.problems.append(f"{checkpoint.NAME} is missing, which says which layers ranks held")
    files = (made.record or {}).get("files", {})
    if files is None:
        made.problems.append("the run ended while it was saved")
    else:
        told = {problem.split(" ", 1)[0] for problem in made.problems}
        there = {name: known for name, known in files.items() if name in present and name not in told}
        made.problems += digests.wrong(made.folder, there)


def _buffers(made: Contents) -> Iterator[str]:
    for head in made.heads.values():
        yield from head.get("buffer_names") or ()


def _names(made: Contents, rank: int) -> Iterator[str]:
    """Names of the parameters and buffers that a rank had, as far as its file has them."""
    yield from made.heads[rank].get("buffer_names") or ()
    yield from _parameters(made, rank)


def _parameters(made: Contents, rank: int) -> Iterator[str]:
    for group in made.heads.get(rank, {}).get("param_shapes") or ():
        yield from group


def _read_ranks(made: Contents, present: set[str], mains: list[int]) -> None:
    """Reads the files of ranks, and notes where they are not from one checkpoint: a tag is mixed where fewer
    ranks saved it again, or where saving was killed."""
    same = ("global_steps", "dp_world_size", "mp_world_size")
    first, ranks = made.head, made.head["mp_world_size"]
    for rank in range(ranks):
        if rank not in mains:
            made.problems.append(f"{made.main(rank)} is missing")
        held = made.heads.get(rank, first)
        made.problems += [
            f"{made.main(rank)} has {key} {held[key]}, but {made.main(min(made.heads))} has {first[key]}"
            for key in same
            if held[key] != first[key]
        ]
    made.problems += [
        f"{made.main(rank)} is not part of this checkpoint, which has {counted(ranks, 'rank')}"
        for rank in mains
        if rank >= ranks
    ]
    steps: dict[str, str] = {}
    for rank in range(ranks) if made.kind == SHARE else ():
        for replica in range(made.replicas):
            if (opens := _try(made, name := made.share(rank, replica), present)) is not None:
                share = made.shares[rank, replica] = unsealed(opens[constants.OPTIMIZER_STATE_DICT])
                base = share[constants.BASE_OPTIMIZER_STATE]
                learns = any(name != checkpoint.IDLE for name in _parameters(made, rank))
                states = base["state"].values() if learns and isinstance(base, dict) else ()
                steps.setdefault(
                    next((str(float(state["step"])) for state in states if "step" in state), ""), name
                )
    if len(told := [f"{name} from step {step}" for step, name in steps.items() if step]) > 1:
        made.problems.append(f"optimizer state from different steps: {', '.join(told)}")
