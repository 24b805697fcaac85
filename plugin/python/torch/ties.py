# SPDX-License-Identifier: Apache-2.0
"""Weights that layers on several ranks share, as an embedding and the head that is tied to it: each rank has a
copy.

    ties = Ties(ties_of(program, build, device, loss_fn), modules, here, ranks, group, timeout_s)     # on all ranks
    ties.begin()                   # every copy gets the first one's values
    with ties.summed():            # a step: all copies get the sum of their gradients
        executor.run()

So the copies stay equal, with the same optimizer on each rank. Only layers() can see them; a user's own build
function must handle its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from ostinato.nn import Shard
from ostinato.groups import later_than, make_group
from torch import nn

from .stages import LOSS, ChainOfLayers, computes_loss, named
from .wrappers import imported


@dataclass(frozen=True)
class Tie:
    """A shared parameter. `layers`: that share it, with its name there. `ranks`: of the pipeline."""

    layers: dict[int, str]
    ranks: tuple[int, ...]
    sharded: bool  # whether a sharded stage cuts it into parts
    separate: bool  # whether it is several parameters that share memory

    def __str__(self) -> str:
        return " and ".join(named(layer, name) for layer, name in self.layers.items())


def ties_of(program, build: Callable, device: Any, loss_fn: Any = None) -> list[Tie]:
    """Ties over several ranks, in the same order on all ranks."""
    ties = []
    for layers in build.ties(device, loss_fn) if isinstance(build, ChainOfLayers) else []:
        holders = [
            stage
            for stage in program.stages
            if any(layer in stage.layers for layer in layers) or (LOSS in layers and computes_loss(stage))
        ]
        ranks = tuple(sorted({rank for stage in holders for rank in stage.ranks}))
        if len(ranks) > 1:
            names = {layer: name for layer, (name, _) in layers.items()}
            separate = len({parameter for _, parameter in layers.values()}) > 1
            ties.append(Tie(names, ranks, any(len(stage.ranks) > 1 for stage in holders), separate))
    return sorted(ties, key=lambda tie: (tie.ranks, str(tie)))


class Ties:
    """The ties of a pipeline, by the ranks that share them. `modules`: by layer, and of LOSS. `here`: those of
    this rank. `ranks`: global, by pipeline rank; all of `group` must make it."""

    def __init__(
        self,
        ties: list[Tie],
        modules: dict[int, Any],
        here: set[int],
        ranks: list[int],
        group: Any,
        timeout_s: float,
    ):
        self._shared: list[tuple[Shard, list[Copy]]] = []
        for members in sorted({tie.ranks for tie in ties}):
            made = make_group([ranks[rank] for rank in members], group, timeout=later_than(timeout_s))
            if made is None:
                continue
            copies = [Copy(modules, here, tie) for tie in ties if tie.ranks == members]
            self._shared.append((Shard.among(made, timeout_s), copies))

    def begin(self) -> None:
        """To be called once the stages are on their devices: all copies get the first rank's values."""
        for shard, copies in self._shared:
            for copy in copies:
                values = local(copy.parameter.data)
                values.copy_(shard.broadcast_(values.contiguous()))

    def elsewhere(self) -> set[nn.Parameter]:
        """Copies that count on the first rank that has one."""
        return {copy.parameter for shard, copies in self._shared if shard.index for copy in copies}

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Around a step: sums what it adds to the copies' gradients over all copies."""
        copies = [copy for _, of_shard in self._shared for copy in of_shard]
        before = [copy.take() for copy in copies]
        try:
            yield
            for shard, of_shard in self._shared:
                _sum(shard, of_shard)
        finally:
            for copy, gradient in zip(copies, before, strict=True):
                copy.add(gradient)


class Copy:
    """This rank's copy. Looks the parameter up each time, in a layer that trains here: moving a module or
    load_state_dict(assign=True) may replace it."""

    def __init__(self, modules: dict[int, Any], here: set[int], tie: Tie):
        self._holder = next((modules[layer], name) for layer, name in tie.layers.items() if layer in here)

    @property
    def parameter(self) -> nn.Parameter:
        module, name = self._holder
        return module.get_parameter(name)

    def take(self) -> torch.Tensor | None:
        gradient, self.parameter.grad = self.parameter.grad, None
        return gradient

    def add(self, before: torch.Tensor | None) -> None:
        """Adds `before` to the gradient, as in gradient accumulation."""
        if before is None:
            return
        parameter = self.parameter
        parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)


def _sum(shard: Shard, copies: list[Copy]) -> None:
    """Sums the copies' gradients; one that no rank has stays None on each (it is frozen, or nothing used it)."""
    parameters = [copy.parameter for copy in copies]
    held = [[p.grad is not None, parts_of(p)] for p in parameters]
    total = shard.sum_(torch.tensor(held, dtype=torch.float32, device=parameters[0].device)).tolist()
    if any(summed != shard.count * mine for (_, summed), (_, mine) in zip(total, held, strict=True)):
        raise ValueError(
            "ranks that share a weight hold different parts of it: apply fully_shard() over as many ranks to all of their stages, or to none"
        )
    for parameter, (count, _) in zip(parameters, total, strict=True):
        if count:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            part = local(gradient)
            summed = shard.sum_(part.contiguous())
            if part is gradient:
                parameter.grad = summed
            else:
                part.copy_(summed)
                parameter.grad = gradient


def parts_of(parameter: nn.Parameter) -> int:
    """Over how many ranks fully_shard() cuts it."""
    kind = imported("torch.distributed.tensor", "DTensor")
    return parameter.device_mesh.size() if isinstance(parameter, kind) else 1


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part on this rank, of what fully_shard() makes; any other tensor is whole."""
    return (
        tensor.to_local() if isinstance(tensor, imported("torch.distributed.tensor", "DTensor")) else tensor
    )
