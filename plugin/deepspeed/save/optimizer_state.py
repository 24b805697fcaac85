# SPDX-License-Identifier: Apache-2.0
"""Optimizer state of a checkpoint whose ranks held other layers, or which was cut for another number of replicas.

    with loading(engine, saved):
        ...                     # DeepSpeed's load_checkpoint()

It is read from DeepSpeed's own files as they lie: `mp_rank_R_model_states.pt` of pipeline rank R without ZeRO, and
`*zero_pp_rank_D_mp_rank_R_optim_states.pt` of each of its replicas D with ZeRO or bf16. They hold what an optimizer steps: parameters, or
those of a group one after the other, or a replica's share of that. Which parameter lies where is known by name: from those files
with ZeRO and bf16, else from `ostinato.json`. Of a checkpoint of DeepSpeed alone, it is the order in which the script gives the optimizer its
parameters now, if that is the model's within each group; numbers and shapes must agree.

A rank opens the files of the ranks that held its layers, one at a time, mapped into memory: it reads what it takes. On the host it
holds the state of its own parameters, once, until the optimizer has taken it. Nothing is changed before every rank has read its part.

Refused on every rank, by name: files that are missing or torn, what they do not hold, parameters that have another shape or belong to no layer,
another kind of optimizer, groups that have been divided otherwise, a schedule of learning rates for other groups; tensor parallelism,
experts, sharded stages, "round_robin_gradients", and "elastic_checkpoint" where it has written the files.
"""

import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint import constants
from ostinato.ranks.groups import everyones

from ..errors import OstinatoError
from ..upstream import Engine
from .checkpoint import Names, Saved

# Under these names DeepSpeed saves weights in fp32: a replica's share of a group, a group, or each parameter's.
SHARE, FLAT, APART = constants.SINGLE_PARTITION_OF_FP32_GROUPS, "fp32_groups_flat", constants.FP32_GROUPS
INNER = (constants.BASE_OPTIMIZER_STATE, constants.OPTIMIZER_STATE_DICT)  # and under these the state of torch's optimizer
LAID_OUT = {  # follows from where parameters lie, and is not taken from the checkpoint
    *INNER, SHARE, FLAT, APART, constants.GROUP_PADDINGS, constants.PARAM_ALIGNMENT_PADDINGS, constants.PARTITION_COUNT, constants.PARAM_SLICE_MAPPINGS,
}  # fmt: skip

# DeepSpeed 0.19.8 names the places that parameters would have without it, in its files and on the parameters themselves.
ROUND_ROBIN = 'with "round_robin_gradients", where parameters lie is not what DeepSpeed says'


def kind_of(optimizer) -> str:
    """SHARE, FLAT or APART; "" for an optimizer that steps the model's own weights."""
    if hasattr(optimizer, "_param_slice_mappings"):
        return SHARE
    return next((kind for kind in (FLAT, APART) if hasattr(optimizer, kind)), "")


def named(engine: Engine) -> Names | None:
    """The parameters of each group in the optimizer's order; None where DeepSpeed's files name them, or nothing is optimized."""
    if engine.optimizer is None or kind_of(engine.optimizer) == SHARE:
        return None
    return [[(engine.param_names.get(p, ""), list(p.shape)) for p in group] for group in _groups(engine.optimizer)]


def _groups(optimizer) -> list[list[torch.nn.Parameter]]:
    kinds = (getattr(optimizer, name, None) for name in ("bit16_groups", "bf16_groups", "fp16_groups"))
    return next((groups for groups in kinds if groups is not None), None) or [group["params"] for group in optimizer.param_groups]


@contextmanager
def loading(engine: Engine, saved: Saved | None) -> Iterator[None]:
    """DeepSpeed's load_checkpoint(), in which the optimizer is given the state of its parameters, where the rank's own file holds something else.
    All ranks must enter it. Raises OstinatoError on each where one cannot read its part, before anything is changed.
    """
    optimizer = engine.optimizer
    if saved is None or optimizer is None or not _lies_otherwise(engine, saved):
        yield
        return
    saved.refuse_parts()
    state, own, replicas = _read(engine, saved), optimizer.load_state_dict, len(engine.grid.dp_group)

    def take(*_, **options):
        if kind_of(optimizer) == SHARE:
            own([state] * replicas, load_from_fp32_weights=engine.zero_load_from_fp32_weights())
        else:
            own(state, **options)
        return True

    optimizer.load_state_dict = engine._load_zero_checkpoint = take  # type: ignore[method-assign]  # of these two, for the call only
    try:
        yield
    finally:
        del optimizer.load_state_dict, engine._load_zero_checkpoint


def _lies_otherwise(engine: Engine, saved: Saved) -> bool:
    """Whether some rank's own file holds something else than its optimizer does now; or DeepSpeed cannot load that: bf16 without ZeRO."""
    if saved.moved or kind_of(engine.optimizer) != SHARE:
        return saved.moved
    replicas = len(list(saved.folder.glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    return replicas not in (0, len(engine.grid.dp_group)) or not engine.zero_optimization()


def _read(engine: Engine, saved: Saved) -> dict:
    state: dict = {}
    why = ""
    names = saved.names if saved.recorded or kind_of(engine.optimizer) == SHARE else _names_alone(engine)
    try:
        state = _Reader(engine, saved, names).state()
    except OstinatoError as error:
        why = str(error)
    except Exception as error:  # of a file with other contents
        why = f"{type(error).__name__}: {error}"
    if said := [f"{why} (rank {rank})" for rank, why in enumerate(everyones(why)) if why]:
        raise saved.refused(said[0])
    return state


def _names_alone(engine: Engine) -> list[Names] | None:
    """`named` for each rank of DeepSpeed's own partition, as far as it follows from how this script fills the groups; else None. All
    ranks must call it.
    """
    order = {name: place for place, (name, _) in enumerate(engine.module.named_parameters())}
    mine, stock = named(engine), engine._ostinato.stock_names
    ordered = mine is not None and all([order.get(name, -1) for name, _ in group] == sorted(order.get(name, -1) for name, _ in group) for group in mine)
    everyone = everyones(mine if ordered else None, engine.grid.pp_proc_group)
    if stock is None or None in everyone or len({len(groups) for groups in everyone}) > 1:
        return None
    group_of = {name: (index, shape) for groups in everyone for index, group in enumerate(groups) for name, shape in group}
    made = [[[(n, group_of[n][1]) for n in names if group_of.get(n, (-1,))[0] == index] for index in range(len(everyone[0]))] for names in stock]
    return made if all(group for of_rank in made for group in of_rank) else None  # DeepSpeed drops empty ones


@dataclass(frozen=True)
class _Piece:
    """`size` numbers of a parameter, from its `start`, lie in what an optimizer steps, from `at`."""

    name: str
    start: int
    size: int
    at: int


def _one_after_the_other(parameters: list[tuple[str, Any]], kind: str) -> list[tuple[torch.Size, list[_Piece]]]:
    """(shape, pieces) of what an optimizer steps for these: names, with shapes."""
    sizes = [torch.Size(shape).numel() for _, shape in parameters]
    if kind != FLAT:
        return [(torch.Size(shape), [_Piece(name, 0, size, 0)]) for (name, shape), size in zip(parameters, sizes, strict=True)]
    *begins, end = accumulate(sizes, initial=0)
    return [(torch.Size([end]), [_Piece(name, 0, size, at) for (name, _), size, at in zip(parameters, sizes, begins, strict=True)])]


def _hyperparameters(groups: list[dict]) -> list[dict]:
    return [{key: value for key, value in group.items() if key not in ("params", "param_names")} for group in groups]


@dataclass
class _Slot:
    """A tensor that this rank's optimizer steps, and what was found for it. `state`: by the optimizer's key; fp32 weights by kind."""

    tensor: torch.Tensor
    pieces: list[_Piece]
    state: dict[str, Any] = field(default_factory=dict)
    groups: list[dict] = field(default_factory=list)  # hyperparameters that the pieces had

    def take(self, mine: _Piece, theirs: _Piece, shape: torch.Size, state: dict[str, Any], group: dict) -> None:
        """What both pieces have of the parameter. `shape`: of the tensor that `state` belongs to."""
        begin, end = max(mine.start, theirs.start), min(mine.start + mine.size, theirs.start + theirs.size)
        if begin >= end:
            return
        if self.groups and self.state.keys() != state.keys():
            raise OstinatoError(f'"{mine.name}" has {sorted(state)}, and the rest of its group {sorted(self.state)}')
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == shape:
                if key not in self.state:
                    self.state[key] = torch.zeros(self.tensor.shape, dtype=value.dtype)
                source = value.detach().reshape(-1)[theirs.at + begin - theirs.start : theirs.at + end - theirs.start]
                self.state[key].view(-1)[mine.at + begin - mine.start : mine.at + end - mine.start] = source
            elif key not in self.state:
                self.state[key] = value.clone() if torch.is_tensor(value) else value
            elif not _equal(self.state[key], value):
                raise OstinatoError(f'{key} of "{mine.name}" is {value}, and of the rest of its group {self.state[key]}')
        self.groups.append(group)


class _Reader:
    """Puts together the state of what this rank's optimizer steps."""

    def __init__(self, engine: Engine, saved: Saved, names: list[Names] | None):
        """`names`: of each pipeline rank of the checkpoint, where its files do not have them."""
        self.engine, self.saved, self.names = engine, saved, names
        self.optimizer, self.kind = engine.optimizer, kind_of(engine.optimizer)
        self.inner = getattr(engine.optimizer, "optimizer", engine.optimizer)  # torch's
        self.groups = [[(engine.param_names.get(p, ""), p) for p in group] for group in _groups(engine.optimizer)]
        self.shapes = {name: p.shape for group in self.groups for name, p in group}
        run = vars(engine).get("_ostinato")  # none in a first start
        self.idle = engine.param_names[run.idle] if run is not None and run.idle is not None else None
        self.found: Counter[str] = Counter()  # numbers of each parameter
        self.rest: dict[str, Any] = {}  # what belongs to no parameter, such as the loss scale
        self.hyperparameters: list[dict] = []  # of the groups in the file that DeepSpeed reads on this rank

    def state(self) -> dict:
        self._refuse()
        groups = [
            [_Slot(tensor, pieces) for tensor, pieces in zip(group["params"], self._pieces(named), strict=True)]
            for group, named in zip(self.inner.param_groups, self.groups, strict=True)
        ]
        read_here = self.engine.stage_id if len(self.saved.held["layers"]) == self.engine.num_stages else 0  # by DeepSpeed
        wanted: dict[int, dict[str, list[tuple[_Slot, _Piece]]]] = {read_here: {}}
        for slot in (slot for of_group in groups for slot in of_group):
            for piece in (piece for piece in slot.pieces if piece.name != self.idle and piece.size):
                wanted.setdefault(self._holder(piece.name), {}).setdefault(piece.name, []).append((slot, piece))
        for rank, by_name in sorted(wanted.items()):
            self._read_rank(rank, by_name, rank == read_here)
        return self._filled(groups)

    def _refuse(self) -> None:
        if getattr(self.engine, "has_moe_layers", False):
            raise OstinatoError("experts have files of their own")
        if self.engine.module.topology().get_dim("model") > 1:
            raise OstinatoError("parameters are cut over tensor-parallel ranks")
        if getattr(self.optimizer, "round_robin_gradients", False) and len(self.engine.grid.dp_group) > 1:
            raise OstinatoError(ROUND_ROBIN)
        if self.kind != SHARE and self.names is None:
            raise OstinatoError("which of its numbers belong to which parameter is not certain")

    def _pieces(self, named: list[tuple[str, Any]]) -> list[list[_Piece]]:
        """Of the parameters of a group, in each tensor that is stepped for it."""
        if self.kind != SHARE:
            return [pieces for _, pieces in _one_after_the_other([(name, p.shape) for name, p in named], self.kind)]
        here = [(name, p._hp_mapping) for name, p in named if p._hp_mapping is not None]
        return [[_Piece(n, m.lp_fragment_address.start, m.lp_fragment_address.numel, m.hp_fragment_address.start) for n, m in here]]

    def _holder(self, name: str) -> int:
        """The first pipeline rank that held the parameter's layer: of tied layers, the one in which layer files have their weights."""
        unit, _, rest = name.partition(".")
        layers = [int(unit)] if unit.isdecimal() else []
        if unit == "tied_modules":
            tied = [(i, spec) for i, spec in enumerate(self.engine.module._layer_specs) if rest.startswith(f"{getattr(spec, 'key', None)}.")]
            layers = [i for i, spec in tied if spec.forward_fn is None] or [i for i, _ in tied]
        for rank, held in enumerate(self.saved.held["layers"]):
            if layers and layers[0] in held:
                return rank
        raise OstinatoError(f'"{name}" is in no layer of the checkpoint' if name else "the optimizer steps something that is no parameter of the model")

    def _read_rank(self, rank: int, wanted: dict[str, list[tuple[_Slot, _Piece]]], read_here: bool) -> None:
        starts: defaultdict[int, Counter[str]] = defaultdict(Counter)  # by group: what the replicas before had of each parameter
        for number, held in enumerate(self._files(rank)):
            inner = next((held[key] for key in INNER if key in held), held)
            groups = _hyperparameters(inner["param_groups"])
            if read_here and number == 0:
                self.rest, self.hyperparameters = {k: v for k, v in held.items() if k not in LAID_OUT and k not in inner}, groups
            for index, group in enumerate(groups):
                for shape, pieces, state in self._saved(held, inner, rank, index, starts[index]):
                    for piece in (piece for piece in pieces if piece.name in wanted):
                        self.found[piece.name] += piece.size
                        for slot, mine in wanted[piece.name]:
                            slot.take(mine, piece, shape, state, group)
        if self.kind == SHARE:
            self._check_shapes(rank, [name for index in sorted(starts) for name in starts[index]])
        for name in wanted:
            if self.found[name] != (size := self.shapes[name].numel()):
                raise OstinatoError(f'pipeline rank {rank} has saved {self.found[name] or "none"} of the {size} numbers of "{name}"')

    def _check_shapes(self, rank: int, order: list[str]) -> None:
        """`order`: of the parameters in the files of its replicas."""
        shapes = _opened(self._main(rank)).get("param_shapes") or []  # with ZeRO
        there = set(order)
        known = {name: shape for of_group in shapes for name, shape in of_group.items() if name in there}
        if known and list(known) != order:
            raise OstinatoError(ROUND_ROBIN)
        for name in order:
            self._check_shape(name, known.get(name))

    def _check_shape(self, name: str, shape: Any) -> None:
        if shape is not None and list(self.shapes.get(name, shape)) != list(shape):
            raise OstinatoError(f'"{name}" has the shape {list(shape)} in it, and {list(self.shapes[name])} now')

    def _main(self, rank: int) -> Path:
        return self.saved.folder / f"mp_rank_{rank:02d}_model_states.pt"

    def _files(self, rank: int) -> Iterator[dict]:
        """What the optimizer of each replica has saved."""
        if self.kind != SHARE:
            yield self._checked(self._main(rank), _opened(self._main(rank)).get("optimizer"))
            return
        replica, replicas = 0, 1
        while replica < replicas:
            name = f"zero_pp_rank_{replica}_mp_rank_{rank:02d}_optim_states.pt"
            path = next((path for path in (self.saved.folder / f"bf16_{name}", self.saved.folder / name) if path.is_file()), self.saved.folder / name)
            held = self._checked(path, _opened(path).get(constants.OPTIMIZER_STATE_DICT))
            count = held[constants.PARTITION_COUNT]
            replica, replicas = replica + 1, max(count) if isinstance(count, list) else count
            yield held

    def _checked(self, path: Path, held: dict | None) -> dict:
        if held is None or next((kind for kind in (SHARE, FLAT, APART) if kind in held), "") != self.kind:
            raise OstinatoError(f"{path.name} is of another kind of optimizer than {type(self.optimizer).__name__} (fp32, fp16, bf16, ZeRO)")
        if isinstance(held.get(constants.BASE_OPTIMIZER_STATE), list):
            raise OstinatoError(f'{path.name}: "elastic_checkpoint" has left out where parameters lie')
        return held

    def _saved(self, held: dict, inner: dict, rank: int, index: int, starts: Counter) -> Iterator[tuple[torch.Size, list[_Piece], dict]]:
        """Of one group in one file: the shape of each tensor that was stepped, the pieces in it, and its state."""
        numbers = inner["param_groups"][index]["params"]
        if self.kind == SHARE:
            yield self._share(held, dict(inner["state"].get(numbers[0], {})), index, starts)
            return
        assert self.names is not None
        known = self.names[rank][index] if index < len(self.names[rank]) else []
        slots = _one_after_the_other(known, self.kind)
        if len(slots) != len(numbers):
            raise OstinatoError(f"group {index} of pipeline rank {rank} has {len(numbers)} parameters, and the script gives it {len(slots)}")
        for name, shape in known:
            self._check_shape(name, shape)
        for at, (number, (whole, pieces)) in enumerate(zip(numbers, slots, strict=True)):
            state = dict(inner["state"].get(number, {}))
            if self.kind:
                state[self.kind] = held[self.kind][index][at] if self.kind == APART else held[self.kind][index]
            for key, value in state.items():
                if not self.saved.recorded and torch.is_tensor(value) and value.dim() and value.shape != whole:
                    raise OstinatoError(f'{key} of "{pieces[0].name}" would have the shape {list(value.shape)} instead of {list(whole)}')
            yield whole, pieces, state

    def _share(self, held: dict, state: dict, index: int, starts: Counter) -> tuple[torch.Size, list[_Piece], dict]:
        weights, padding = held[SHARE][index], held[constants.GROUP_PADDINGS][index]
        pieces = []
        for name, address in held[constants.PARAM_SLICE_MAPPINGS][index].items():
            pieces.append(_Piece(name, starts[name], address.numel, address.start))
            starts[name] += address.numel
        last = max((piece.at + piece.size for piece in pieces), default=0)
        whole = [(weights.numel(),), (weights.numel() + padding,)]  # with and without padding at its end
        cut = {key: value[:last] if torch.is_tensor(value) and value.shape in whole else value for key, value in state.items()}
        return torch.Size([last]), pieces, cut | {SHARE: weights[:last]}

    def _filled(self, groups: list[list[_Slot]]) -> dict:
        made = self.inner.state_dict()
        state: dict[int, dict] = {}
        weights = []
        for index, (group, slots) in enumerate(zip(made["param_groups"], groups, strict=True)):
            had = [of_slot for slot in slots for of_slot in slot.groups] or self.hyperparameters[index : index + 1]
            if not all(_equal(had[0], other) for other in had[1:]):
                raise OstinatoError(f"group {index} is of parameters that were in several groups, with different hyperparameters")
            group.update(had[0] if had else {})
            weights.append([slot.state.pop(self.kind, slot.tensor.detach()) for slot in slots])
            state |= {number: slot.state for number, slot in zip(group["params"], slots, strict=True) if slot.state}
        if self.engine.lr_scheduler is not None and not _equal(_hyperparameters(made["param_groups"]), self.hyperparameters):
            raise OstinatoError("the schedule of learning rates was for other groups of parameters on this rank")
        made["state"] = state
        if not self.kind:
            return self.rest | made
        key = INNER[0] if self.kind == SHARE else INNER[1]
        return {**self.optimizer.state_dict(), **self.rest, key: made, self.kind: weights if self.kind == APART else [slots[0] for slots in weights]}


def _opened(path: Path) -> dict:
    """A file that DeepSpeed has written, and unpickles itself where nothing moves: mapped, so that a rank reads what it needs of it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=zipfile.is_zipfile(path))
    except FileNotFoundError:
        raise OstinatoError(f"{path.name} is missing") from None
    except Exception as error:
        raise OstinatoError(f"{path.name} cannot be read ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})") from None


def _equal(a: Any, b: Any) -> bool:
    if torch.is_tensor(a) or torch.is_tensor(b):
        return torch.is_tensor(a) and torch.is_tensor(b) and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
