# SPDX-License-Identifier: Apache-2.0
"""Loads optimizer state from a checkpoint whose ranks held different layers, or that has a different number of
replicas.

    with loading(engine, saved):
        ...                     # DeepSpeed's load_checkpoint()

It reads DeepSpeed's own files (optimizer_files). Names say where each parameter is: with ZeRO and bf16 the
files have them, else `ostinato.json`. A checkpoint of DeepSpeed alone has no names: it is read in the order in
which the script gives the optimizer its parameters now, provided that this is the model's order within each
group; counts and shapes must agree.

A rank opens the files of the ranks that held its layers, one at a time and memory-mapped, so it reads only
what it needs. The host holds the state of the rank's own parameters, once, until the optimizer has taken it.
Nothing changes before every rank has read its part.

Refused on every rank, by name: files that are missing or incomplete, state that they lack, parameters with a
different shape or in no layer, a different kind of optimizer, groups that were divided differently, a learning
rate schedule for different groups; another number of tensor slices, experts, "round_robin_gradients", and
files written with "elastic_checkpoint".
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from ostinato.groups import everyones

from ..errors import OstinatoError
from ..section.plans import Stage
from .tensor_names import layer_of, tied_key
from ..upstream import Engine
from .checkpoint import IDLE, Names, Saved, found, held_alone, held_by, holders
from .layer_files import layers_here
from .optimizer_files import (
    APART,
    FLAT,
    INNER,
    ROUND_ROBIN,
    SHARE,
    STRANGERS,
    Files,
    Slot,
    equal,
    hyperparameters_of,
    one_after_the_other,
)
from .parts import Part, Parts, Piece, pieces_of, whole_shape
from .partition import modules_of, stock_names
from .seal import replaced, unsealing


def kind_of(optimizer) -> str:
    """SHARE, FLAT or APART; "" for an optimizer that steps the model's own weights."""
    if hasattr(optimizer, "_param_slice_mappings"):
        return SHARE
    return next((kind for kind in (FLAT, APART) if hasattr(optimizer, kind)), "")


def named(engine: Engine) -> Names | None:
    """The parameters of each group, in the optimizer's order; None where DeepSpeed's files name them, or there
    is no optimizer."""
    if engine.optimizer is None or kind_of(engine.optimizer) == SHARE:
        return None
    return [
        [(engine.param_names.get(p, ""), list(p.shape)) for p in group] for group in _groups(engine.optimizer)
    ]


def parts_of(engine: Engine) -> Parts:
    """Of the parameters that this rank holds in part."""
    run = vars(engine).get("_ostinato")  # missing in a first start
    made = {}
    for held in run.parameter_parts if run is not None else ():
        begin, end = held.shard.bounds(held.whole[held.dimension])
        made[engine.param_names[held.parameter]] = Part(held.dimension, begin, end, held.whole)
    return made


def _groups(optimizer) -> list[list[torch.nn.Parameter]]:
    kinds = (getattr(optimizer, name, None) for name in ("bit16_groups", "bf16_groups", "fp16_groups"))
    return next((groups for groups in kinds if groups is not None), None) or [
        group["params"] for group in optimizer.param_groups
    ]


def loading_alone(engine: Engine, load_dir: str, tag: str | None) -> AbstractContextManager[None]:
    """The same for an engine of DeepSpeed with its own partition. Raises OstinatoError where it could not load."""
    parts = engine.module.parts
    return loading(engine, found(load_dir, tag, held_alone(parts), engine))


def check_moved(engine: Engine, load_dir: str, tag: str, stages: list[Stage]) -> None:
    """Raises OstinatoError where the checkpoint that this engine has just saved could not be loaded by ranks with
    these stages. Reads what this rank holds as they would read theirs. All ranks must call it."""
    saved = found(load_dir, tag, held_by(stages), engine)
    if saved is not None and engine.optimizer is not None:
        _read(engine, saved)


@contextmanager
def loading(engine: Engine, saved: Saved | None, schedule: bool = True) -> Iterator[None]:
    """Around DeepSpeed's load_checkpoint(): where the rank's own file holds state of different parameters, the
    optimizer gets the right state instead. All ranks must enter it. Raises OstinatoError on each where one
    cannot read its part, before anything changes. `schedule`: the learning rate schedule is loaded, too.
    """
    optimizer = engine.optimizer
    if saved is None or optimizer is None or not _lies_otherwise(engine, saved):
        known = saved is None or saved.recorded  # else the seal stays, and says what it is
        with unsealing(optimizer) if optimizer is not None and known else nullcontext():
            yield
        return
    state = _read(engine, saved, schedule)
    own, replicas = optimizer.load_state_dict, len(engine.grid.dp_group)

    def take(*_, **options):
        if kind_of(optimizer) == SHARE:
            own([state] * replicas, load_from_fp32_weights=engine.zero_load_from_fp32_weights())
        else:
            own(state, **options)
        return True

    with replaced(optimizer, "load_state_dict", take), replaced(engine, "_load_zero_checkpoint", take):
        yield


def _lies_otherwise(engine: Engine, saved: Saved) -> bool:
    """Whether any rank's own file does not match its optimizer; or DeepSpeed cannot load it: bf16 without
    ZeRO."""
    if saved.moved or kind_of(engine.optimizer) != SHARE:
        return saved.moved
    replicas = len(list(saved.folder.glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    return replicas not in (0, len(engine.grid.dp_group)) or not engine.zero_optimization()


def _read(engine: Engine, saved: Saved, schedule: bool = True) -> dict:
    state: dict = {}
    why = ""
    names = (
        saved.names
        if saved.recorded or kind_of(engine.optimizer) == SHARE
        else _names_alone(engine, saved.held["layers"])
    )
    try:
        state = _Reader(engine, saved, names, schedule).state()
    except OstinatoError as error:
        why = str(error)
    except Exception as error:  # from a file with unexpected contents
        why = f"{type(error).__name__}: {error}"
    if said := [f"{why} (rank {rank})" for rank, why in enumerate(everyones(why)) if why]:
        raise saved.refused(said[0])
    return state


def _names_alone(engine: Engine, layers: list[list[int]]) -> list[Names] | None:
    """`named` for each rank of DeepSpeed's own partition, with these `layers`, where it follows from how this
    script fills the groups; else None. All ranks must call it.
    """
    order = {name: place for place, (name, _) in enumerate(engine.module.named_parameters())}
    mine, parts = named(engine), parts_of(engine)
    stock = stock_names(engine.module, [modules_of(engine.module, of_rank) for of_rank in layers], IDLE)
    ordered = mine is not None and all(
        [order.get(name, -1) for name, _ in group] == sorted(order.get(name, -1) for name, _ in group)
        for group in mine
    )
    whole = [[(name, list(whole_shape(name, shape, parts))) for name, shape in group] for group in mine or ()]
    everyone = everyones(whole if ordered else None, engine.grid.pp_proc_group)
    if None in everyone or len({len(groups) for groups in everyone}) > 1:
        return None
    group_of = {
        name: (index, shape)
        for groups in everyone
        for index, group in enumerate(groups)
        for name, shape in group
    }
    made = [
        [
            [(n, group_of[n][1]) for n in names if group_of.get(n, (-1,))[0] == index]
            for index in range(len(everyone[0]))
        ]
        for names in stock
    ]
    return made if all(group for of_rank in made for group in of_rank) else None  # DeepSpeed drops empty ones


class _Reader(Files):
    """Assembles the state for this rank's optimizer."""

    def __init__(self, engine: Engine, saved: Saved, names: list[Names] | None, schedule: bool):
        """`names`: of each pipeline rank of the checkpoint, where its files do not have them."""
        self.engine, self.saved, self.optimizer = engine, saved, engine.optimizer
        self.schedule = schedule and engine.lr_scheduler is not None
        self.inner = getattr(engine.optimizer, "optimizer", engine.optimizer)  # torch's
        self.groups = [
            [(engine.param_names.get(p, ""), p) for p in group] for group in _groups(engine.optimizer)
        ]
        self.mine = parts_of(engine)
        shapes = {name: whole_shape(name, p.shape, self.mine) for group in self.groups for name, p in group}
        super().__init__(
            saved.folder,
            kind_of(engine.optimizer),
            names,
            shapes,
            type(engine.optimizer).__name__,
            saved.recorded,
            saved.parts,
            (engine.grid.get_slice_parallel_rank(), engine.grid.slice_parallel_size),
        )
        run = vars(engine).get("_ostinato")  # missing in a first start
        self.idle = engine.param_names[run.idle] if run is not None and run.idle is not None else None

    def state(self) -> dict:
        self._refuse()
        tensors = [group["params"] for group in self.inner.param_groups]
        groups = [
            [Slot(tensor.shape, pieces) for tensor, pieces in zip(stepped, self._pieces(named), strict=True)]
            for stepped, named in zip(tensors, self.groups, strict=True)
        ]
        # By DeepSpeed.
        read_here = self.engine.stage_id if len(self.saved.held["layers"]) == self.engine.num_stages else 0
        wanted: dict[int, dict[str, list[tuple[Slot, Piece]]]] = {read_here: {}}
        ranks_of: dict[str, list[int]] = {}
        for slot in (slot for of_group in groups for slot in of_group):
            for piece in (piece for piece in slot.pieces if piece.name != self.idle and piece.size):
                if piece.name not in ranks_of:
                    ranks_of[piece.name] = self._holders(piece.name)
                for rank in ranks_of[piece.name]:
                    wanted.setdefault(rank, {}).setdefault(piece.name, []).append((slot, piece))
        for rank, by_name in sorted(wanted.items()):
            self.read_rank(rank, by_name, rank == read_here)
        self.check_found(ranks_of)
        return self._filled(groups, tensors)

    def _refuse(self) -> None:
        if getattr(self.engine, "has_moe_layers", False):
            raise OstinatoError("experts have separate files")
        if getattr(self.optimizer, "round_robin_gradients", False) and len(self.engine.grid.dp_group) > 1:
            raise OstinatoError(ROUND_ROBIN)
        if not all(name for group in self.groups for name, _ in group):
            raise OstinatoError(STRANGERS)
        if self.kind != SHARE and self.names is None:
            raise OstinatoError("the files do not say which state belongs to which parameter")

    def _pieces(self, named: list[tuple[str, Any]]) -> list[list[Piece]]:
        """The pieces of a group's parameters, in each tensor that the optimizer steps for it."""
        if self.kind != SHARE:
            shapes = [(name, p.shape) for name, p in named]
            return [pieces for _, pieces in one_after_the_other(shapes, self.kind, self.mine)]
        held = [(name, p._hp_mapping) for name, p in named if p._hp_mapping is not None]
        shares = [
            Piece(n, m.lp_fragment_address.start, m.lp_fragment_address.numel, m.hp_fragment_address.start)
            for n, m in held
        ]
        return [[piece for share in shares for piece in pieces_of(share, self.mine)]]

    def _holders(self, name: str) -> list[int]:
        """The pipeline ranks from which the parameter is read: the first that held its layer, or, of a layer in
        parts, all of one direction. Of tied layers the first of this rank counts, because what is not tied in their
        module is separate on every rank."""
        model, layer = self.engine.module, layer_of(name)
        if (key := tied_key(name)) is not None:
            tied = (i for i in layers_here(model) if getattr(model._layer_specs[i], "key", None) == key)
            layer = next(tied, None)
        if ranks := holders(self.saved.held, layer):
            return ranks if any(name in self.parts_of(rank) for rank in ranks) else ranks[:1]
        raise OstinatoError(f'no layer of the checkpoint has "{name}"')

    def _filled(self, groups: list[list[Slot]], tensors: list[list[torch.Tensor]]) -> dict:
        made = {"param_groups": []} | self.inner.state_dict()
        state: dict[int, dict] = {}
        weights = []
        for index, (group, slots, stepped) in enumerate(
            zip(made["param_groups"], groups, tensors, strict=True)
        ):
            group.update(self.hyperparameters_of_group(index, slots))
            weights.append(
                [
                    slot.state.pop(self.kind, tensor.detach())
                    for slot, tensor in zip(slots, stepped, strict=True)
                ]
            )
            state |= {
                number: slot.state for number, slot in zip(group["params"], slots, strict=True) if slot.state
            }
        if self.schedule and not equal(hyperparameters_of(made["param_groups"]), self.hyperparameters):
            raise OstinatoError("the learning rate schedule was for different parameter groups on this rank")
        made["state"] = state
        if not self.kind:
            return self.rest | made
        key = INNER[0] if self.kind == SHARE else INNER[1]
        return {
            **self.optimizer.state_dict(),
            **self.rest,
            key: made,
            self.kind: weights if self.kind == APART else [slots[0] for slots in weights],
        }
