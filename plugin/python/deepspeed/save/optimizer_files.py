# SPDX-License-Identifier: Apache-2.0
"""The files in which DeepSpeed keeps optimizer state, read without an engine.

Without ZeRO: `mp_rank_R_model_states.pt` of pipeline rank R; with ZeRO or bf16:
`*zero_pp_rank_D_mp_rank_R_optim_states.pt` of each of its replicas D. They hold the tensors that an optimizer
steps: single parameters, or the parameters of a group one after the other, or a replica's share of a group.

    files = Files(folder, SHARE, names, shapes, "AdamW")
    files.read_rank(2, {"3.weight": [(slot, piece)]}, read_here=False)      # slot.state: by the optimizer's key

Files are opened one at a time and memory-mapped. Errors are OstinatoErrors that name the file or the
parameter.
"""

import zipfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint import constants
from ostinato.errors import counted

from ..errors import OstinatoError
from .checkpoint import NAME, Names
from .parts import Parts, Piece, pieces_of, whole_shape
from .seal import GAPS, INNER, inner_of, is_sealed, unsealed

# Under these names DeepSpeed saves weights in fp32: a replica's share of a group, a group, or each
# parameter's.
SHARE, FLAT, APART = constants.SINGLE_PARTITION_OF_FP32_GROUPS, "fp32_groups_flat", constants.FP32_GROUPS
LAID_OUT = {  # follows from the layout of parameters, and is not taken from the checkpoint
    *INNER, SHARE, FLAT, APART, constants.DS_VERSION, constants.GROUP_PADDINGS, GAPS, constants.PARTITION_COUNT, constants.PARAM_SLICE_MAPPINGS,
}  # fmt: skip

STRANGERS = (
    "the optimizer has parameters that are in no layer of their rank, as where model_parameters are those of a whole "
    "model: make it with those of the PipelineModule"
)
# In its files and on the parameters, DeepSpeed 0.19.8 records the places that parameters would have without it.
ROUND_ROBIN = 'with "round_robin_gradients", DeepSpeed does not record the true places of parameters'


def one_after_the_other(
    parameters: list[tuple[str, Any]], kind: str, parts: Parts | None = None
) -> list[tuple[torch.Size, list[Piece]]]:
    """(shape, pieces) of the tensors that an optimizer steps for these (name, shape). `parts`: for those that
    it holds a part of."""
    sizes = [torch.Size(shape).numel() for _, shape in parameters]
    begins = [*accumulate(sizes, initial=0)] if kind == FLAT else [0] * len(sizes)
    held = [Piece(name, 0, size, at) for (name, _), size, at in zip(parameters, sizes, begins, strict=False)]
    pieces = [pieces_of(piece, parts or {}) for piece in held]
    if kind == FLAT:
        return [(torch.Size([begins[-1]]), [piece for of_one in pieces for piece in of_one])]
    return [(torch.Size(shape), of_one) for (_, shape), of_one in zip(parameters, pieces, strict=True)]


def hyperparameters_of(groups: list[dict]) -> list[dict]:
    return [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]


@dataclass
class Slot:
    """A tensor that an optimizer steps, and the state found for it. `state`: by the optimizer's key; fp32
    weights by kind."""

    shape: torch.Size
    pieces: list[Piece]
    made: Callable[..., torch.Tensor] = torch.zeros  # from a shape and a dtype
    state: dict[str, Any] = field(default_factory=dict)
    groups: list[dict] = field(default_factory=list)  # hyperparameters that the pieces had

    @property
    def _size(self) -> int:
        """Of the tensor, without padding at its end."""
        return max(piece.at + piece.size for piece in self.pieces)

    def take(self, mine: Piece, theirs: Piece, shape: torch.Size, state: dict[str, Any], group: dict) -> None:
        """Takes what both pieces have of the parameter. `shape`: of the tensor to which `state` belongs."""
        begin, end = max(mine.start, theirs.start), min(mine.start + mine.size, theirs.start + theirs.size)
        if begin >= end:
            return
        if self.groups and self.state.keys() != state.keys():
            raise OstinatoError(
                f'"{mine.name}" has {sorted(state)}, but the rest of its group has {sorted(self.state)}'
            )
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == shape:
                if key not in self.state:
                    self.state[key] = self.made(self.shape, dtype=value.dtype)
                source = value.detach().reshape(-1)[
                    theirs.at + begin - theirs.start : theirs.at + end - theirs.start
                ]
                self.state[key].view(-1)[mine.at + begin - mine.start : mine.at + end - mine.start] = source
            elif (
                torch.is_tensor(value)
                and value.dim()
                and (
                    mine != theirs
                    or self._size != shape.numel()
                    or (key in self.state and not equal(self.state[key], value))
                )
            ):
                raise OstinatoError(f'{key} of "{mine.name}" is not elementwise, and cannot be cut')
            elif key not in self.state:
                self.state[key] = value.clone() if torch.is_tensor(value) else value
            elif not equal(self.state[key], value):
                raise OstinatoError(
                    f'{key} of "{mine.name}" is {value}, but {self.state[key]} in the rest of its group'
                )
        self.groups.append(group)


class Files:
    """The optimizer state of one checkpoint; each pipeline rank has written its own."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        names: list[Names] | None,
        shapes: dict[str, torch.Size],
        optimizer: str,
        recorded: bool = True,
        parts: Sequence[Parts] = (),
        tensor_slice: tuple[int, int] = (0, 1),
    ):
        """`names`: of each pipeline rank, where its files do not have them; not `recorded`: they were derived
        from this model. `shapes`: of the parameters to read, whole, by name; `optimizer`: its class; `parts`: of each
        pipeline rank, where its files hold parts of parameters; `tensor_slice`: the one to read, and the number of
        them.
        """
        self.parts, self._slice = parts, tensor_slice
        self.folder = folder
        self.kind = kind
        self.names = names
        self.shapes = shapes
        self.recorded = recorded
        self._optimizer = optimizer
        self.found: Counter[str] = Counter()  # elements of each parameter
        self.rest: dict[str, Any] = {}  # state that belongs to no parameter, such as the loss scale
        self.hyperparameters: list[dict] = []  # of groups, from the file that DeepSpeed reads on this rank
        self._step: tuple[int, str] | None = None  # of the first file, and its name

    def parts_of(self, rank: int) -> Parts:
        return self.parts[rank] if rank < len(self.parts) else {}

    def read_rank(self, rank: int, wanted: dict[str, list[tuple[Slot, Piece]]], read_here: bool) -> None:
        """`wanted`: the slots for the parameters in its files; `read_here`: DeepSpeed would read these
        files."""
        self._check_step(self.main(rank))
        # By group: elements of each parameter that earlier replicas had.
        starts: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for number, held in enumerate(self._files(rank)):
            inner = inner_of(held)
            groups = hyperparameters_of(inner.get("param_groups", []))
            if read_here and number == 0:
                self.rest = {k: v for k, v in held.items() if k not in LAID_OUT and k not in inner}
                self.hyperparameters = groups
            for index in range(len(groups)):
                for saved in self._saved(held, inner, rank, index, starts[index]):
                    self._give(wanted, *saved, [groups[index]])
            if self.kind == SHARE and len(held[SHARE]) > len(groups):  # see universal.wholes_saved
                wholes = self._share(held, dict(inner["state"][len(groups)]), len(groups), Counter())
                self._give(wanted, *wholes, groups, opened(self.main(rank))["param_shapes"])
        if self.kind == SHARE:
            self._check_shapes(rank, [name for index in sorted(starts) for name in starts[index]])

    def check_found(self, ranks_of: dict[str, list[int]]) -> None:
        """Once the files of all ranks are read. `ranks_of`: by parameter, which held it. Raises OstinatoError
        where elements are missing."""
        for name, ranks in ranks_of.items():
            if self.found[name] != (size := self.shapes[name].numel()):
                by = f"pipeline rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                raise OstinatoError(
                    f'{by} saved {self.found[name] or "none"} of the {size} elements of "{name}"'
                )

    def _give(
        self,
        wanted: dict[str, list[tuple[Slot, Piece]]],
        shape: torch.Size,
        pieces: list[Piece],
        state: dict,
        groups: list[dict],
        names: Sequence[Container[str]] = (),
    ) -> None:
        """`groups`: hyperparameters, of the one group of these pieces, or of groups with the `names`."""
        for piece in (piece for piece in pieces if piece.name in wanted):
            self.found[piece.name] += piece.size
            group = next((i for i, of_group in enumerate(names) if piece.name in of_group), 0)
            mine, end = wanted[piece.name], piece.start + piece.size  # in the order in which they start
            at = max(0, bisect_right(mine, piece.start, key=lambda one: one[1].start) - 1)
            while at < len(mine) and mine[at][1].start < end:
                slot, here = mine[at]
                slot.take(here, piece, shape, state, groups[group])
                at += 1

    def hyperparameters_of_group(self, index: int, slots: list[Slot]) -> dict:
        """The hyperparameters that the state in `slots` had in the checkpoint."""
        had = [of_slot for slot in slots for of_slot in slot.groups] or self.hyperparameters[
            index : index + 1
        ]
        if not all(equal(had[0], other) for other in had[1:]):
            raise OstinatoError(
                f"the parameters in group {index} were in several groups with different hyperparameters"
            )
        return had[0] if had else {}

    def _check_step(self, path: Path) -> None:
        step = opened(path)["global_steps"], path.name
        self._step = self._step or step
        if step[0] != self._step[0]:
            raise OstinatoError(
                f"{step[1]} is from step {step[0]}, but {self._step[1]} from step {self._step[0]}: files of two checkpoints are mixed"
            )

    def _check_shapes(self, rank: int, order: list[str]) -> None:
        """`order`: the parameters as they come in the files of its replicas."""
        shapes = opened(self.main(rank)).get("param_shapes") or []  # with ZeRO
        there = set(order)
        known = {name: shape for of_group in shapes for name, shape in of_group.items() if name in there}
        if known and list(known) != order:
            raise OstinatoError(ROUND_ROBIN)
        for name in order:
            self._check_shape(name, known.get(name))

    def _check_shape(self, name: str, shape: Any) -> None:
        if shape is not None and list(self.shapes.get(name, shape)) != list(shape):
            raise OstinatoError(f'"{name}" had shape {list(shape)}, but has {list(self.shapes[name])} now')

    def main(self, rank: int) -> Path:
        return self.folder / f"mp_rank_{self._number(rank):02d}_model_states.pt"

    def _number(self, rank: int) -> int:
        """Of its files: slices of a pipeline rank follow one another."""
        index, count = self._slice
        return rank * count + index

    def _files(self, rank: int) -> Iterator[dict]:
        """The saved optimizer state of each replica."""
        if self.kind != SHARE:
            yield self._checked(self.main(rank), opened(self.main(rank)).get("optimizer"))
            return
        replica, replicas = 0, 1
        while replica < replicas:
            name = f"zero_pp_rank_{replica}_mp_rank_{self._number(rank):02d}_optim_states.pt"
            path = next(
                (path for path in (self.folder / f"bf16_{name}", self.folder / name) if path.is_file()),
                self.folder / name,
            )
            held = self._checked(path, opened(path).get(constants.OPTIMIZER_STATE_DICT))
            count = held[constants.PARTITION_COUNT]
            replica, replicas = replica + 1, max(count) if isinstance(count, list) else count
            yield held

    def _checked(self, path: Path, held: dict | None) -> dict:
        if is_sealed(held) and not self.recorded:
            raise OstinatoError(
                f"{NAME} is missing, which says to which layers the state in {path.name} belongs"
            )
        held = unsealed(held)
        if held is None or next((kind for kind in (SHARE, FLAT, APART) if kind in held), "") != self.kind:
            raise OstinatoError(
                f"{path.name} is from a different kind of optimizer than {self._optimizer} (fp32, fp16, bf16, ZeRO)"
            )
        if isinstance(held.get(constants.BASE_OPTIMIZER_STATE), list):
            raise OstinatoError(
                f'{path.name}: with "elastic_checkpoint", it does not say where parameters are'
            )
        return held

    def _saved(
        self, held: dict, inner: dict, rank: int, index: int, starts: Counter
    ) -> Iterator[tuple[torch.Size, list[Piece], dict]]:
        """For one group in one file: the shape of each tensor of the optimizer, its pieces, and its state."""
        numbers = inner["param_groups"][index]["params"]
        if self.kind == SHARE:
            yield self._share(held, dict(inner["state"].get(numbers[0], {})), index, starts)
            return
        assert self.names is not None
        known = self.names[rank][index] if index < len(self.names[rank]) else []
        parts = self.parts_of(rank)
        slots = one_after_the_other(known, self.kind, parts)
        if len(slots) != len(numbers):
            raise OstinatoError(
                f"group {index} of pipeline rank {rank} has {counted(len(numbers), 'parameter')}, but the script gives it {len(slots)}"
            )
        for name, shape in known:
            self._check_shape(name, whole_shape(name, shape, parts))
        for at, (number, (whole, pieces)) in enumerate(zip(numbers, slots, strict=True)):
            state = dict(inner["state"].get(number, {}))
            if self.kind:
                state[self.kind] = (
                    held[self.kind][index][at] if self.kind == APART else held[self.kind][index]
                )
            # Names that were derived may be in another order. State of a shape that no parameter has is not elementwise.
            others = () if self.recorded else {shape for shape, _ in slots} - {whole}
            for key, value in state.items():
                if torch.is_tensor(value) and value.dim() and value.shape in others:
                    raise OstinatoError(
                        f'{key} of "{pieces[0].name}" has shape {list(value.shape)} instead of {list(whole)}'
                    )
            yield whole, pieces, state

    def _share(
        self, held: dict, state: dict, index: int, starts: Counter
    ) -> tuple[torch.Size, list[Piece], dict]:
        weights, padding = held[SHARE][index], held[constants.GROUP_PADDINGS][index]
        pieces = []
        for name, address in held[constants.PARAM_SLICE_MAPPINGS][index].items():
            pieces.append(Piece(name, starts[name], address.numel, address.start))
            starts[name] += address.numel
        last = max((piece.at + piece.size for piece in pieces), default=0)
        whole = [(weights.numel(),), (weights.numel() + padding,)]  # with and without padding at its end
        cut = {
            key: value[:last] if torch.is_tensor(value) and value.shape in whole else value
            for key, value in state.items()
        }
        return torch.Size([last]), pieces, cut | {SHARE: weights[:last]}


def opened(path: Path) -> dict:
    """Unpickles a file of DeepSpeed's, as DeepSpeed itself does; memory-mapped, so that a rank reads only what
    it needs."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=False, mmap=zipfile.is_zipfile(path))
    except FileNotFoundError:
        raise OstinatoError(f"{path.name} is missing") from None
    except Exception as error:
        raise OstinatoError(
            f"{path.name} cannot be read ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        ) from None
    if not isinstance(held, dict):
        raise OstinatoError(f"{path.name} is not from DeepSpeed: it holds a {type(held).__name__}")
    return held


def equal(a: Any, b: Any) -> bool:
    if torch.is_tensor(a) or torch.is_tensor(b):
        return torch.is_tensor(a) and torch.is_tensor(b) and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
