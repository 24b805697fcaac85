# SPDX-License-Identifier: Apache-2.0
"""Universal checkpoints (ds_to_universal, "load_universal") where several pipeline ranks hold a layer.

They hold each parameter whole, by name. A rank with a copy of a layer (two directions) reads it like any other
rank; a rank with a part reads the whole and cuts it. A checkpoint to be converted names each parameter once: a
copy under its first holder; IDLE, which no layer has, it does not name. The converter cannot handle parts on
several pipeline ranks, so the first rank of a sharded stage assembles their state, and saves it as one more group
in its optimizer's file: the converter reads it like any group, and loading drops it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint import constants
from deepspeed.utils.tensor_fragment import fragment_address
from ostinato.groups import everyones
from ostinato.nn import Shard
from ostinato.nn.layers import collect

from ..errors import OstinatoError
from ..upstream import Engine
from .checkpoint import IDLE
from .optimizer_files import hyperparameters_of
from .seal import replaced

ADAM = ("exp_avg", "exp_avg_sq")  # the state that the converter knows, besides the fp32 weights


@dataclass(frozen=True)
class ParameterPart:
    """A parameter that this rank holds in part. `whole`: the shape of the whole parameter."""

    layer: int
    parameter: Any  # torch.nn.Parameter, with DeepSpeed's attributes
    shard: Shard
    dimension: int
    whole: tuple[int, ...]


def prepare(engine: Engine, parts: list[ParameterPart], others_name: Callable[[str], bool]) -> None:
    """To be called once the engine has its optimizer. `others_name`: whether another rank saves the parameter
    of that name."""
    mappings = getattr(engine.optimizer, "_param_slice_mappings", None)
    if mappings is None:
        return  # this optimizer's state cannot be converted
    for part in parts:
        part.parameter.load_hp_checkpoint_state = _cutting(part, part.parameter.load_hp_checkpoint_state)
    in_parts = whole_shapes(engine, parts)
    for of_group in mappings:
        for name in [name for name in of_group if name in in_parts or name == IDLE or others_name(name)]:
            del of_group[name]


def whole_shapes(engine: Engine, parts: list[ParameterPart]) -> dict[str, torch.Size]:
    """The shapes of whole parameters, by name."""
    return {engine.param_names[part.parameter]: torch.Size(part.whole) for part in parts}


@contextmanager
def wholes_saved(engine: Engine, parts: list[ParameterPart]) -> Iterator[None]:
    """Around DeepSpeed's writing of the optimizer's state. All ranks must enter it."""
    wholes = _put_together(engine, [part for part in parts if hasattr(part.parameter, "_hp_mapping")])
    if not wholes:
        yield
        return
    optimizer = engine.optimizer
    own = optimizer.state_dict
    with replaced(optimizer, "state_dict", lambda: _with_group(own(), wholes)):
        yield


def refuse_unlike_groups(engine: Engine, idle: Any) -> None:
    """A universal checkpoint has the rates of one rank's groups, and DeepSpeed gives them to the groups of every rank
    by their position. All ranks must call it. `idle`: as for idle_reads_nothing()."""
    groups = engine.optimizer.param_groups if idle is None and engine.optimizer is not None else []
    held = everyones([*map(repr, hyperparameters_of(groups))])
    for number, at_number in enumerate(zip_longest(*held)):
        if len({options for options in at_number if options is not None}) > 1:
            raise OstinatoError(
                f"the optimizer's group {number} has other options (lr, weight_decay, ...) on one rank than on another, and a universal "
                "checkpoint keeps those of one rank for all: load the checkpoint that it was made from"
            )


@contextmanager
def idle_reads_nothing(engine: Engine, idle: Any) -> Iterator[None]:
    """Around loading. `idle`: the parameter of a rank with nothing to train, or None."""
    if not hasattr(idle, "_hp_mapping") or not engine.load_universal_checkpoint():
        yield
        return
    had = idle._hp_mapping, idle.load_hp_checkpoint_state
    # For a replica without a share of it, too: DeepSpeed asks each rank for the step of a parameter.
    idle._hp_mapping, idle.load_hp_checkpoint_state = _Nothing(), lambda *_, **__: None
    try:
        yield
    finally:
        idle._hp_mapping, idle.load_hp_checkpoint_state = had


class _Nothing:
    def get_optim_state_keys(self) -> tuple[str, ...]:
        return ()


def drop_wholes(engine: Engine) -> None:
    """To be called after loading: drops state that belongs to none of the optimizer's parameters."""
    state = getattr(getattr(engine.optimizer, "optimizer", None), "state", {})
    for key in [key for key in state if not torch.is_tensor(key)]:
        del state[key]


def _put_together(engine: Engine, parts: list[ParameterPart]) -> dict[str, list[torch.Tensor]]:
    """By name: the fp32 weights and the state of ADAM, on the CPU of the first rank of the first replica; {}
    elsewhere."""
    wholes: dict[str, list[torch.Tensor]] = {}
    states = engine.optimizer.optimizer.state.values()
    if not all(key in state for state in states for key in ADAM):
        return {}
    for part in parts:
        values = [_full(engine, part.parameter, key) for key in (None, *ADAM)]
        if engine.grid.get_data_parallel_rank() > 0 or part.layer in engine.module.written_elsewhere:
            continue
        collected = [collect(value, part.dimension, part.shard) for value in values]
        if part.shard.index == 0:
            wholes[engine.param_names[part.parameter]] = [
                torch.cat(of_ranks, dim=part.dimension) for of_ranks in collected if of_ranks is not None
            ]
    return wholes


def _full(engine: Engine, parameter: Any, key: str | None) -> torch.Tensor:
    """Of the part that this rank holds, the fp32 weights (None) or a state, to which ZeRO's ranks contribute
    their shares. DeepSpeed's get_full_hp_param() finds states of the first group only. All replicas must call it.
    """
    whole = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
    if (mapping := parameter._hp_mapping) is not None:
        share = mapping.hp_fragment
        if key is not None:
            flat = engine.optimizer.optimizer.param_groups[mapping.param_group_index]["params"][0]
            here = mapping.hp_fragment_address
            share = engine.optimizer.optimizer.state[flat][key].narrow(0, here.start, here.numel)
        whole.narrow(0, mapping.lp_fragment_address.start, share.numel()).copy_(share)
    dist.all_reduce(whole, group=engine.grid.get_data_parallel_group())
    return whole.view(parameter.shape)


def _with_group(saved: dict, wholes: dict[str, list[torch.Tensor]]) -> dict:
    """What an optimizer saves, plus one group of the parameters in `wholes`, one after the other as in the
    other groups."""
    fp32, *adam = (
        torch.cat([value.flatten() for value in values]) for values in zip(*wholes.values(), strict=True)
    )
    base = saved[constants.BASE_OPTIMIZER_STATE]
    state, at, mapping = dict(base["state"]), 0, {}
    for name, (whole, *_) in wholes.items():
        mapping[name] = fragment_address(numel=whole.numel(), start=at)
        at += whole.numel()
    steps = {key: value for key, value in next(iter(state.values())).items() if key == "step"}
    state[len(state)] = dict(zip(ADAM, adam, strict=True)) | steps
    added = {
        constants.SINGLE_PARTITION_OF_FP32_GROUPS: fp32,
        constants.PARAM_SLICE_MAPPINGS: mapping,
        constants.GROUP_PADDINGS: 0,
    }
    lists = {key: [*saved[key], value] for key, value in added.items()}
    return saved | lists | {constants.BASE_OPTIMIZER_STATE: base | {"state": state}}


def _cutting(part: ParameterPart, load: Callable) -> Callable:
    """DeepSpeed's loader of one parameter, told how the parameter is cut in the way that DeepSpeed marks tensor
    parallelism."""
    size = part.whole[part.dimension]
    bounds = [part.shard.of(index).bounds(size) for index in range(part.shard.count)]
    sizes = [end - begin for begin, end in bounds]
    meta = {"partition_dim": part.dimension, "logical_shape": part.whole, "partition_sizes": sizes}

    def cutting(folder, _rank, _ranks, **others):
        # For the call only: it also changes how a model is saved.
        setattr(part.parameter, constants.DS_AUTOTP_UC_META, meta)
        try:
            return load(folder, part.shard.index, part.shard.count, **others)
        finally:
            delattr(part.parameter, constants.DS_AUTOTP_UC_META)

    return cutting
