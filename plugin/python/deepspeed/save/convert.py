# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of any placement as DeepSpeed alone would have, for stages of consecutive layers.

    convert(read(folder), Path("converted"), bounds=[0, 5, 8], replicas=2)      # layers 0 to 4 on stage 0, the rest on stage 1

Layer files are the same for each placement, so they are copied. The state of each stage's optimizer is read
from the files of the ranks that had it (optimizer_files), and laid out as DeepSpeed does: the parameters of a
group in the order of the model, tied ones first. One file is made at a time, and its tensors stay on disk
until it is written: they need not fit into memory.
"""

import os
import secrets
import shutil
from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint import constants
from deepspeed.utils.tensor_fragment import fragment_address
from ostinato.errors import counted
from ostinato.files import new_folder

from ostinato import core

from ..errors import OstinatoError
from .tensor_names import layer_of, tied_key
from . import checkpoint, partition
from .contents import DIMENSIONS, LAYER, STAGES, Contents
from .optimizer_files import APART, FLAT, INNER, SHARE, STRANGERS, Files, Slot, one_after_the_other, opened
from .parts import Piece, whole_shape
from .seal import GAPS

ALIGNMENT = 2  # elements per replica: DeepSpeed's nccl_start_alignment_factor
SMALL = 2**20  # bytes of a tensor that may be assembled in memory


def bounds_for(contents: Contents, stages: int) -> list[int]:
    """The bounds of DeepSpeed's own partition."""
    facts = contents.facts
    if facts is None and contents.problems:  # ostinato.json may be what is missing
        raise OstinatoError(f"{contents.folder} cannot be converted: {'; '.join(contents.problems[:3])}")
    layers = facts["bounds"][-1] if facts else 0
    if facts and stages > layers:
        raise OstinatoError(f"{contents.folder}: --stages {stages}: the model has {counted(layers, 'layer')}")
    if facts is None or (bounds := partition.parts(facts, stages)) is None:
        why = (
            "the model has its own way to cut itself"
            if facts
            else "the checkpoint does not say how DeepSpeed would cut the model, as one saved under a plan does"
        )
        raise OstinatoError(f"{contents.folder}: {why}: give the layers of each stage with --placement")
    return bounds


def bounds_of(placement: Path) -> list[int]:
    """Bounds of a placement that DeepSpeed alone can run: one stage of consecutive layers per device, in order."""
    found = core.Placement.from_file(placement).to_dict()
    devices = {
        stage["name"]: sorted(
            {device for b in found["blocks"] if b["stage"] == stage["name"] for device in b["devices"]}
        )
        for stage in found["stages"]
    }
    layers = [stage.get("layers") for stage in found["stages"]]
    if None in layers or list(devices.values()) != [[device] for device in range(len(found["devices"]))]:
        raise OstinatoError(
            f"{placement}: DeepSpeed alone needs one stage per device, in the order of the devices, each with its layers"
        )
    if [begin for begin, _ in layers] != [0, *(end for _, end in layers[:-1])]:
        raise OstinatoError(f"{placement}: the layers of its stages are not consecutive: {layers}")
    return [0, *(end for _, end in layers)]


@dataclass(frozen=True)
class _Parameter:
    name: str
    shape: torch.Size
    layers: list[int]  # to which it belongs: several where it is tied
    group: int
    rank: int  # the first pipeline rank of the checkpoint from which it is read
    order: int  # its place in the group there

    def place(self, layers: Any) -> tuple[bool, int, int]:
        """A sort key: its place in a stage, or rank, that holds `layers`."""
        return (
            not self.name.startswith("tied_modules."),
            min(set(self.layers) & set(layers), default=-1),
            self.order,
        )


def convert(contents: Contents, into: Path, bounds: list[int], replicas: int) -> None:
    """Makes the folder `into` completely, or not at all. Raises OstinatoError."""
    if into.exists():
        raise OstinatoError(f"{into} already exists: choose a new folder")
    try:
        converter = _Converter(contents, bounds, replicas)
        with new_folder(into) as made:
            folder = made / contents.folder.name
            folder.mkdir()
            for name in sorted(path.name for path in contents.folder.iterdir() if LAYER.fullmatch(path.name)):
                shutil.copyfile(contents.folder / name, folder / name)
            for stage in range(len(bounds) - 1):
                converter.write(folder, stage)
            (made / checkpoint.LATEST).write_text(contents.folder.name)
    except OstinatoError as error:
        raise OstinatoError(f"{contents.folder} cannot be converted: {error}") from None


class _Converter:
    def __init__(self, contents: Contents, bounds: list[int], replicas: int):
        self.contents, self.bounds, self.replicas, self.kind = contents, bounds, replicas, contents.kind
        self.share = next(iter(contents.shares.values()), {})
        self._refuse()
        self.parts = checkpoint.parts_in(contents.record or {})
        names = self._names()
        self.groups = max((len(groups) for groups in names), default=0)
        self.parameters = self._parameters(names)
        self.names = names if self.kind != SHARE else None

    def _refuse(self) -> None:
        contents, record = self.contents, self.contents.record or {}
        why = ""
        if contents.problems:
            why = "; ".join(contents.problems[:3])
        elif contents.slices > 1:
            why = "layers are cut over tensor-parallel ranks"
        elif record.get("sharded") and "parts" not in record:
            why = f"several ranks hold parts of layers {', '.join(map(str, record['sharded']))}"
        elif self.kind == SHARE and contents.head.get("param_shapes") is None:
            why = "DeepSpeed alone cannot load bf16 without ZeRO"
        elif any(any(group) for group in self.share.get(GAPS, ())):
            why = '"parameter_alignment" left gaps between parameters'
        elif self.kind not in (SHARE, None) and "parameters" not in record:
            why = "without ZeRO, DeepSpeed's files do not say which parameter is which: load it under a plan and save it again"
        if why:
            raise OstinatoError(why)

    def _names(self) -> list[list[list[tuple[str, Any]]]]:
        """Names and shapes by pipeline rank and group, IDLE of a rank with nothing to train."""
        if self.kind is None:
            return []
        names = (self.contents.record or {}).get("parameters") or []
        if self.kind == SHARE:
            names = [
                [list(group.items()) for group in head["param_shapes"]]
                for _, head in sorted(self.contents.heads.items())
            ]
        return names

    def _parameters(self, names: list[list[list[tuple[str, Any]]]]) -> list[_Parameter]:
        found: dict[str, _Parameter] = {}
        held = (self.contents.record or {}).get("layers")
        for rank, groups in enumerate(names):
            learns = any(name != checkpoint.IDLE for group in groups for name, _ in group)
            if learns and len(groups) != self.groups:
                raise OstinatoError(
                    f"pipeline rank {rank} has {counted(len(groups), 'parameter group')}, but another rank has {self.groups}"
                )
            for index, group in enumerate(groups):
                here = [
                    _Parameter(
                        name, self._whole_shape(rank, name, shape), self._layers_of(name), index, rank, order
                    )
                    for order, (name, shape) in enumerate(group)
                    if name != checkpoint.IDLE
                ]
                places = [one.place(held[rank] if held else one.layers) for one in here]
                if places != sorted(places):
                    raise OstinatoError(
                        f"the parameters in group {index} of pipeline rank {rank} are not in the order of the model"
                    )
                for one in here:
                    had = found.setdefault(one.name, one)
                    if had.group != index:
                        raise OstinatoError(
                            f'"{one.name}" is in group {had.group} of pipeline rank {had.rank}, but in group {index} of pipeline rank {rank}'
                        )
                    if held and one.layers[0] in held[rank] and one.layers[0] not in held[had.rank]:
                        found[one.name] = one  # the rank whose weights the layer files have
        return list(found.values())

    def _whole_shape(self, rank: int, name: str, shape: Any) -> torch.Size:
        parts = self.parts[rank] if rank < len(self.parts) else {}
        return whole_shape(name, shape, parts)

    def _ranks_of(self, parameter: _Parameter) -> list[int]:
        """All of the first direction where they hold parts of it."""
        if not any(parameter.name in of_rank for of_rank in self.parts):
            return [parameter.rank]
        return checkpoint.holders(self.contents.record or {}, parameter.layers[0])

    def _layers_of(self, name: str) -> list[int]:
        if not name:
            raise OstinatoError(STRANGERS)
        if (layer := layer_of(name)) is not None:
            return [layer]
        tied = (self.contents.facts or {}).get("tied") or {}
        if not (layers := tied.get(tied_key(name))):
            raise OstinatoError(f'it does not say to which layers "{name}" belongs')
        return layers

    def write(self, folder: Path, stage: int) -> None:
        """The files of one pipeline rank."""
        contents, stages, layers = self.contents, len(self.bounds) - 1, range(*self.bounds[stage : stage + 2])
        base = stage if stages == contents.stages else 0  # the rank whose file DeepSpeed would read
        groups = [self._of_group(index, layers) for index in range(self.groups)]
        for index, group in enumerate(groups):
            if not group:
                raise OstinatoError(
                    f"stage {stage} (layers {layers[0]} to {layers[-1]}) would have no parameters in group {index} of the optimizer"
                )
        head = opened(contents.folder / contents.main(base))
        head |= {"mp_world_size": stages, "dp_world_size": self.replicas}
        if DIMENSIONS in head:
            head[DIMENSIONS] |= {STAGES: stages}
        buffers = dict.fromkeys(name for one in contents.heads.values() for name in one["buffer_names"])
        head["buffer_names"] = [
            name for name in buffers if (layer := layer_of(name)) is None or layer in layers
        ]
        if self.kind == SHARE:
            head["param_shapes"] = [OrderedDict((p.name, p.shape) for p in group) for group in groups]
            for replica in range(self.replicas):
                held = opened(contents.folder / contents.share(base, 0))
                held[constants.OPTIMIZER_STATE_DICT] = self._share(
                    folder, groups, base, replica, head[constants.DS_VERSION]
                )
                _save(held, folder / contents.share(stage, replica))
        elif self.kind is not None:
            head["optimizer"] = self._whole(folder, groups, base)
        _save(head, folder / contents.main(stage))

    def _of_group(self, index: int, layers: range) -> list[_Parameter]:
        mine = [p for p in self.parameters if p.group == index and set(p.layers) & set(layers)]
        return sorted(mine, key=lambda p: p.place(layers))

    def _read(self, groups: list[list[Slot]], base: int) -> Files:
        ranks = {p.name: self._ranks_of(p) for p in self.parameters}
        wanted: dict[int, dict[str, list[tuple[Slot, Piece]]]] = {base: {}}
        for slot in (slot for of_group in groups for slot in of_group):
            for piece in slot.pieces:
                for rank in ranks[piece.name]:
                    wanted.setdefault(rank, {}).setdefault(piece.name, []).append((slot, piece))
        files = Files(
            self.contents.folder,
            self.kind or "",
            self.names,
            {p.name: p.shape for p in self.parameters},
            "the first rank's",
            parts=self.parts,
        )
        for rank, by_name in sorted(wanted.items()):
            files.read_rank(rank, by_name, rank == base)
        files.check_found({name: ranks[name] for by_name in wanted.values() for name in by_name})
        return files

    def _whole(self, folder: Path, groups: list[list[_Parameter]], base: int) -> dict:
        """The optimizer state of a stage without ZeRO: DeepSpeed numbers tensors through all groups."""
        slots = [
            [
                Slot(*one, _beside(folder))
                for one in one_after_the_other([(p.name, p.shape) for p in group], self.kind or "")
            ]
            for group in groups
        ]
        files, state, made, weights = self._read(slots, base), dict[int, dict](), list[dict](), list[list]()
        for index, of_group in enumerate(slots):
            numbers = range(sum(map(len, slots[:index])), sum(map(len, slots[: index + 1])))
            weights.append([slot.state.pop(self.kind) for slot in of_group] if self.kind else [])
            state |= {
                number: slot.state for number, slot in zip(numbers, of_group, strict=True) if slot.state
            }
            made.append(files.hyperparameters_of_group(index, of_group) | {"params": list(numbers)})
        inner = {"state": state, "param_groups": made}
        if not self.kind:
            return files.rest | inner
        return files.rest | {
            INNER[1]: inner,
            self.kind: weights if self.kind == APART else [of_group[0] for of_group in weights],
        }

    def _share(
        self, folder: Path, groups: list[list[_Parameter]], base: int, replica: int, version: str
    ) -> dict:
        """The optimizer state of one replica of a stage with ZeRO: of each group, its part of all elements,
        which are padded at the end."""
        slots, paddings = [], []
        for index, group in enumerate(groups):
            _, pieces = one_after_the_other([(p.name, p.shape) for p in group], FLAT)[0]
            total = sum(piece.size for piece in pieces)
            size = ceil(total / (ALIGNMENT * self.replicas)) * ALIGNMENT
            begin, end = replica * size, (replica + 1) * size
            if total <= begin:
                raise OstinatoError(
                    f"group {index} of a stage has {counted(total, 'element')}, too few for {self.replicas} replicas"
                )
            cuts = [(piece, max(piece.at, begin), min(piece.at + piece.size, end)) for piece in pieces]
            mine = [Piece(piece.name, a - piece.at, b - a, a - begin) for piece, a, b in cuts if a < b]
            slots.append(Slot(torch.Size([size]), mine, _beside(folder)))
            paddings.append(max(0, end - total))
        files = self._read([[slot] for slot in slots], base)
        weights = [
            slot.state.pop(SHARE)[: slot.shape.numel() - padding]
            for slot, padding in zip(slots, paddings, strict=True)
        ]
        made = {
            INNER[0]: {
                "state": {index: slot.state for index, slot in enumerate(slots) if slot.state},
                "param_groups": [
                    files.hyperparameters_of_group(index, [slot]) | {"params": [index]}
                    for index, slot in enumerate(slots)
                ],
            },
            SHARE: weights,
            constants.GROUP_PADDINGS: paddings,
            constants.PARTITION_COUNT: [self.replicas] * self.groups,
            constants.PARAM_SLICE_MAPPINGS: [
                OrderedDict((p.name, fragment_address(p.size, p.at)) for p in slot.pieces) for slot in slots
            ],
            constants.DS_VERSION: version,
        }
        gaps = {GAPS: [[0] * len(group) for group in groups]}
        return files.rest | made | (gaps if GAPS in self.share else {})


def _beside(folder: Path):
    """Makes tensors of zeros; a large one is mapped to an unnamed file on the disk of `folder`."""

    def made(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        if size * dtype.itemsize <= SMALL:
            return torch.zeros(shape, dtype=dtype, device="cpu")
        path = folder / f"{secrets.token_hex(8)}.tmp"
        try:
            with open(path, "wb") as file:
                # A full disk raises an error here, but a signal later.
                os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
            return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)
        finally:
            path.unlink(missing_ok=True)

    return made


def _save(state: dict, path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # from torch's writer
        raise OstinatoError(f"{path.name} cannot be written: {str(error).splitlines()[0]}") from None
