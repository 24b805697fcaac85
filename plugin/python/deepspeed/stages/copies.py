# SPDX-License-Identifier: Apache-2.0
"""Plans that run the model in two directions (X: Chimera, DualPipe), each with its own copy of the weights.

Every layer, or each part of a sharded one, is on several ranks: gradients of all copies are added before
DeepSpeed reduces them over data-parallel replicas, each counts once in norms, and the first holder writes
checkpoints. (A stage sharded over the same ranks for all directions has one copy: its ranks add the gradients
of both directions.) The copies start equal, and stay equal, because they add the same gradients and take the
same steps.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.nn.layers import split_of
from ostinato.groups import everyones, later_than
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ostinato.buffers import Buffers
from ..errors import OstinatoError
from .module import StagedLayers
from .sharding import groups_of
from ..upstream import Engine, Model, count_elsewhere


class Holders:
    """Which pipeline ranks hold which modules, equal on every rank. `module_names[r]`: of rank r (rebuild), in model
    order; `places`: for a sharded module, the part that each of its ranks has.
    """

    def __init__(self, module_names: list[list[str]], places: dict[str, dict[int, Shard]], rank: int):
        self.module_names, self.rank, self._places = module_names, rank, places

    def part(self, module_name: str, rank: int) -> Shard | None:
        """The part of the module that the rank holds; None for all of it."""
        return self._places.get(module_name, {}).get(rank)

    def key(self, module_name: str, rank: int) -> tuple[str, int | None]:
        """The module, and the index of the part that the rank holds, None for all of it."""
        part = self.part(module_name, rank)
        return module_name, None if part is None else part.index

    def ranks(self) -> dict[tuple[str, int | None], tuple[int, ...]]:
        """The ranks that hold each key, ascending."""
        held: dict[tuple[str, int | None], tuple[int, ...]] = {}
        for rank, module_names in enumerate(self.module_names):
            for key in (self.key(module_name, rank) for module_name in module_names):
                held[key] = (*held.get(key, ()), rank)
        return held

    def counts_elsewhere(self, module_name: str, name: str, module: torch.nn.Module) -> bool:
        """Whether a norm counts the parameter on another rank of a sharded module: each part counts, but a
        tensor that is whole on all ranks counts on the first only."""
        part = self.part(module_name, self.rank)
        return part is not None and part.index > 0 and name not in split_of(module)


class Copies:
    """The weights that several ranks hold. `groups`: process groups, by their pipeline ranks. All ranks must make one."""

    def __init__(self, model: Model, held: Holders, timeout_s: float):
        self._model, self._held, self._holders = model, held, held.ranks()
        self.groups = groups_of(model._grid, list(self._holders.values()), timeout=later_than(timeout_s))
        # In the same order on all ranks of the group.
        self._shared: list[tuple[object, list[torch.nn.Parameter]]] = []
        self._elsewhere = {
            module_name for (module_name, _), ranks in self._holders.items() if held.rank in ranks[1:]
        }  # another rank holds it first

    def settle(self) -> None:
        """To be called once the script has finished the model: it may have replaced parameters. All ranks must
        call it.

        The gradients of a module are summed over all ranks that hold it, tied or not, and it counts once in
        norms: its holders take turns, because DeepSpeed's norms need something to count on every rank. Where
        directions have a sharded module on different ranks, the same holds for each part; a part that serves
        both directions on its rank has one holder.
        """
        held, turn = self._held, Counter[tuple[int, ...]]()
        shared: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        for module_name in held.module_names[held.rank]:
            ranks = self._holders[held.key(module_name, held.rank)]
            module = self._model.get_submodule(module_name)
            trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            for name, parameter in trained:
                other = ranks[turn[ranks] % len(ranks)] != held.rank
                count_elsewhere(parameter, other or held.counts_elsewhere(module_name, name, module))
            turn[ranks] += bool(trained)
            if len(ranks) > 1:
                shared.setdefault(ranks, []).extend(p for _, p in trained)
                self._begin_equal(module, ranks)
        self._shared = [(self.groups[ranks], shared[ranks]) for ranks in sorted(shared)]

    def _begin_equal(self, module: torch.nn.Module, ranks: tuple[int, ...]) -> None:
        """Makes the copies equal: each rank may have initialised what a script adds (adapters) by itself."""
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(
                    tensor.data, self._model._grid.stage_to_global(ranks[0]), group=self.groups[ranks]
                )

    def others_name(self, parameter: str) -> bool:
        """Whether another rank saves the parameter of that name."""
        return any(parameter.startswith(f"{module_name}.") for module_name in self._elsewhere)

    def add_gradients(self, engine: Engine) -> None:
        """Sums gradients over all copies, in one exchange per group and dtype."""
        for group, parameters in self._shared:
            by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
            for gradient in _gradients(engine, parameters, group):
                by_dtype.setdefault(gradient.dtype, []).append(gradient)
            for gradients in by_dtype.values():
                flat = _flatten_dense_tensors(gradients)
                dist.all_reduce(flat, group=group)
                for gradient, total in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
                    gradient.copy_(total)


@contextmanager
def watched_buffers(model: StagedLayers, group) -> Iterator[None]:
    """Around the forwards of a step. Raises OstinatoError on every rank where they changed buffers
    (BatchNorm's statistics), because checkpoints and evaluation keep one for both directions. All ranks of the
    group must call it.
    """
    buffers = Buffers(model.layers_here())
    before = buffers.now()
    yield
    if changed := sorted({name for held in everyones(buffers.changed(before), group) for name in held}):
        raise OstinatoError(
            f"the plan runs the model in two directions, but forwards change {_of_layer(changed[0])}{f' and {len(changed) - 1} more' if changed[1:] else ''}: "
            "each direction would update its own copy, from its own batches. Use a placement with one direction, or layers without such statistics"
        )


def _of_layer(buffer: str) -> str:
    layer, _, name = buffer.partition(".")
    return f'"{name}" of layer {layer}'


def _gradients(engine: Engine, parameters: list[torch.nn.Parameter], group) -> list[torch.Tensor]:
    """The gradients of parameters that a batch of any direction reached: zeros where it did so on another rank
    only. A parameter that no batch reached has no gradient, as in 1F1B. All ranks of the group must call it.
    """
    found = [gradient_of(engine, parameter) for parameter in parameters]
    reached = torch.tensor(
        [gradient is not None for gradient in found], dtype=torch.int32, device=engine.device
    )
    dist.all_reduce(reached, op=dist.ReduceOp.MAX, group=group)
    return [
        _zeros(engine, parameter) if gradient is None else gradient
        for parameter, gradient, anywhere in zip(parameters, found, reached.tolist(), strict=True)
        if anywhere
    ]


def gradient_of(engine: Engine, parameter) -> torch.Tensor | None:
    """The gradient, where DeepSpeed's optimizer keeps the sum of a step."""
    return getattr(parameter, place_of_gradients(engine), None)


def _zeros(engine: Engine, parameter) -> Any:
    """Makes a gradient of zeros, where gradient_of() finds it."""
    if engine.using_bf16_optimizer:
        begin_sum(engine.optimizer, parameter)
    else:
        place = place_of_gradients(engine)
        dtype = parameter.dtype if place == "grad" else engine.optimizer.gradient_accumulation_dtype
        setattr(parameter, place, torch.zeros_like(parameter, dtype=dtype, requires_grad=False))
    return gradient_of(engine, parameter)


def place_of_gradients(engine: Engine) -> str:
    if engine.using_bf16_optimizer:
        return "_hp_grad"
    return "grad_accum" if getattr(engine.optimizer, "use_grad_accum_attribute", False) else "grad"


def begin_sum(optimizer, parameter) -> None:
    """Does what DeepSpeed's bf16 optimizer does when the first gradient arrives: its fp32 sums are parts of
    one tensor."""
    for group, index in places_in_bf16(optimizer, parameter):
        parameter._hp_grad = optimizer.fp32_groups_gradients[group][index]
        optimizer.fp32_groups_has_gradients[group][index] = True


def places_in_bf16(optimizer, parameter) -> list[tuple[int, int]]:
    """The group and the index of the parameter in DeepSpeed's bf16 optimizer; none where it does not train it."""
    return [
        (group, index)
        for group, parameters in enumerate(optimizer.bf16_groups)
        for index, held in enumerate(parameters)
        if held is parameter
    ]


def add_losses(engine: Engine, ranks: list[int]) -> None:
    """Adds the losses of all ranks that compute some, on the first of `ranks`: pipeline ranks, in the same order
    everywhere."""
    mine, group = engine.stage_id, engine._ostinato.group
    ranks = list(dict.fromkeys(ranks))  # one rank may end both directions
    if mine not in ranks or len(ranks) == 1:
        return
    assert engine.total_loss is not None
    additional = engine.total_additional_losses or {}
    names = list(additional)
    own = [engine.total_loss, *additional.values()]
    flat = torch.stack([loss.detach().float().reshape(()) for loss in own])
    for rank in ranks[1:]:
        if mine == rank:
            dist.send(flat, engine.grid.stage_to_global(ranks[0]), group=group)
        elif mine == ranks[0]:
            other = torch.empty_like(flat)
            dist.recv(other, engine.grid.stage_to_global(rank), group=group)
            flat = flat + other
    if mine == ranks[0]:
        engine.total_loss = flat[0].to(own[0].dtype).reshape(own[0].shape)
        for name, total in zip(names, flat[1:], strict=True):
            additional[name] = total
