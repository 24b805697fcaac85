# SPDX-License-Identifier: Apache-2.0
"""The stages of the plan on a rank, as modules that the user builds.

def build(stage: Stage) -> nn.Module: ...      # called on a rank for each stage that it runs

layers([a, b, c])                              # such a function for a chain whose placement has [[stages]]
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from ostinato.errors import counted
from ostinato.nn import Shard, sharded
from ostinato.nn.layers import split_of
from ostinato.groups import later_than, make_group, timeout_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from .wrappers import innermost


@dataclass(frozen=True)
class Stage:
    """One stage on this rank. `shard`: this rank's place among the ranks of a sharded stage; None if it is not
    sharded."""

    index: int  # in the plan, model order
    name: str
    layers: Sequence[int]  # of the placement's [[stages]], ascending; empty if there are none
    shard: Shard | None
    recompute: bool = (
        False  # its backward runs the forward again (layers() does so; your own module must do it itself)
    )


Build = Callable[[Stage], nn.Module]
MOST = 64  # outputs of a layer that are looked at
LOSS = -1  # stands for loss_fn among the numbers of layers


def named(layer: int, name: str) -> str:
    """A parameter, in words."""
    return f"{'loss_fn' if layer == LOSS else f'layer {layer}'} ({name})"


def build_of(build: Any) -> Build:
    """A chain of layers may be given as it is. Raises ValueError for what makes no stages."""
    if isinstance(build, nn.Sequential | nn.ModuleList | list | tuple):
        return layers(list(build))
    if isinstance(build, nn.Module) or not callable(build):
        raise ValueError(
            f"build is a {type(build).__name__}: expected layers(chain), or a function that makes the module of a stage"
        )
    return build


def layers(chain: Sequence[nn.Module]) -> Build:
    """Cuts a chain of layers as the placement's [[stages]] say; ostinato.nn cuts layers of sharded stages.

    Every rank passes the whole chain; modules of other ranks are not touched, and may be on the "meta" device.
    """

    return ChainOfLayers(chain)


class ChainOfLayers:
    """The result of layers(). It has the whole model, so it knows which weights its layers share."""

    def __init__(self, chain: Sequence[nn.Module]):
        self.chain = list(chain)
        for index, layer in enumerate(self.chain):
            if not isinstance(layer, nn.Module):
                raise ValueError(
                    f"layer {index} of the chain is a {type(layer).__name__}: expected a torch.nn.Module"
                )

    def check(self, stages: Sequence) -> None:
        """Raises ValueError, on all ranks, where the plan is for a chain of another length. `stages`: of the
        program."""
        placed = 1 + max((layer for stage in stages for layer in stage.layers), default=-1)
        if placed != len(self.chain):
            raise ValueError(
                f"the stages of the plan hold {counted(placed, 'layer')}, but the chain has {len(self.chain)}: the placement needs "
                "[[stages]] for this model"
            )

    def __call__(self, stage: Stage) -> nn.Module:
        if not stage.layers or stage.layers[-1] >= len(self.chain):
            first, end = (stage.layers[0], stage.layers[-1] + 1) if stage.layers else (0, 0)
            raise ValueError(
                f'stage "{stage.name}" holds layers [{first}, {end}), but the chain has '
                f"{len(self.chain)}: the placement needs [[stages]] for this model"
            )
        if not isinstance(stage.layers, range):
            raise ValueError(
                f'stage "{stage.name}" runs layers {stage.layers}, part of a model with branches, but layers() makes '
                "a chain: build the stage's module yourself"
            )
        mine = [self.chain[layer] for layer in stage.layers]
        last = len(self.chain) - 1
        after = None if stage.layers[-1] == last else self.chain[stage.layers[-1] + 1]
        if stage.shard is None:
            return (Recomputed if stage.recompute else InARow)(*mine, after=after)
        numbered = zip(stage.layers, mine, strict=True)
        parts = [sharded(layer, stage.shard, last=i == last) for i, layer in numbered]
        named = {f"{n}_part{stage.shard.index}" if split_of(p) else str(n): p for n, p in enumerate(parts)}
        return InARow(OrderedDict(named), after=after)

    def keywords(self) -> set[str] | None:
        """The names of arguments that its layers take; None: a layer takes any."""
        taken = [_keywords(layer) for layer in self.chain]
        return None if None in taken else set().union(*filter(None, taken))

    def modules(self, loss_fn: Any = None) -> dict[int, nn.Module]:
        """By layer; a loss_fn that is a module is LOSS."""
        layers = dict(enumerate(self.chain))
        return {**layers, LOSS: loss_fn} if isinstance(loss_fn, nn.Module) else layers

    def names(self, loss_fn: Any = None) -> WeakIdKeyDictionary:
        """Of the parameters of all layers, as long as they live."""
        layers = self.modules(loss_fn).items()
        return WeakIdKeyDictionary(
            {p: named(layer, name) for layer, module in layers for name, p in module.named_parameters()}
        )

    def ties(self, device: Any, loss_fn: Any = None) -> list[dict[int, tuple[str, nn.Parameter]]]:
        """Weights that several layers share: by layer, the name and the parameter there. `device`: of the pipeline."""
        device = torch.empty(0, device=device).device  # with its number
        layers = self.modules(loss_fn).items()
        every = [(index, name, p) for index, layer in layers for name, p in layer.named_parameters()]
        trained = {_memory(parameter, device) for _, _, parameter in every if parameter.requires_grad}
        held: dict[int, dict[int, tuple[str, nn.Parameter]]] = {}
        for index, name, parameter in every:
            memory = _memory(parameter, device)
            held.setdefault(memory if memory in trained else id(parameter), {})[index] = name, parameter
        return [by_layer for by_layer in held.values() if len(by_layer) > 1]


def _memory(parameter: nn.Parameter, device: torch.device) -> int:
    """What is the same for parameters that begin at the same element, also of different shapes. Moving to a device
    takes them apart."""
    # Has its elements, unlike a DTensor, or one that a LazyLinear has.
    here = type(parameter) is nn.Parameter and parameter.device == device
    return parameter.data_ptr() if here and parameter.data_ptr() else id(parameter)


class InARow(nn.Sequential):
    """Layers that may return tuples: a layer that takes as many arguments gets them one by one, any other layer
    gets the tuple, as in torch. Keyword arguments go to the layers that take them. `after`: the first layer of
    the next stage, which gets a list as if it were a tuple.

    Parts of a layer have a name for each rank: torch.distributed.checkpoint saves one tensor of each name."""

    def __init__(self, *layers, after: nn.Module | None = None):
        super().__init__(*layers)
        # Not the layer itself, which would be copied and saved with this module.
        self._apart = [n for n in range(MOST) if after is not None and _takes(after, (None,) * n, {})]

    def forward(self, *inputs, **keywords):
        value: Any = inputs
        for layer in self:
            own = _own(layer, keywords) if keywords else keywords
            apart = type(value) is tuple and _takes(layer, value, own)
            value = layer(*value, **own) if apart else layer(value, **own)
        if isinstance(value, list | tuple) and type(value) is not tuple and len(value) in self._apart:
            raise ValueError(
                f"a {type(self[-1]).__name__}, the last layer of its stage, returns a {type(value).__name__} of {len(value)}, which the next "
                "layer takes as one argument in one process, but would get item by item from another stage: return a tensor or a tuple"
            )
        return value


def _takes(layer: nn.Module, arguments: tuple, keywords: Mapping[str, Any]) -> bool:
    if len(arguments) == 1:
        return True
    try:
        inspect.signature(innermost(layer).forward).bind(*arguments, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def _keywords(layer: nn.Module) -> set[str] | None:
    """The names of arguments that it takes; None: any."""
    try:
        taken = inspect.signature(innermost(layer).forward).parameters.values()
    except (TypeError, ValueError):  # not a function of Python
        return set()
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return None
    return {one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


def _own(layer: nn.Module, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    names = _keywords(layer)
    return {name: value for name, value in keywords.items() if names is None or name in names}


class Recomputed(InARow):
    """Keeps its input from the forward, and runs it again in the backward."""

    def forward(self, *inputs, **keywords):
        return checkpoint(partial(super().forward, **keywords), *inputs, use_reentrant=False)


def computes_loss(stage) -> bool:
    """`stage`: of the program."""
    return stage.has_backward and not stage.outputs


def module_of(build: Build, stage: Stage) -> nn.Module:
    made = build(stage)
    if not isinstance(made, nn.Module):
        raise ValueError(
            f'build() returns a {type(made).__name__} for stage "{stage.name}": expected a torch.nn.Module'
        )
    return made


def own_stages(
    program, rank: int, ranks: list[int], group=None, timeout_s: float | None = None
) -> list[Stage]:
    """The stages of `rank`; makes the groups of all sharded stages, so all ranks of `group` must call it.
    `ranks`: global, by device. `timeout_s`: as in Pipeline."""
    shared = sorted({tuple(stage.ranks) for stage in program.stages if len(stage.ranks) > 1})
    limit = later_than(timeout_of(group) if timeout_s is None else timeout_s)
    groups = {members: make_group([ranks[r] for r in members], group, timeout=limit) for members in shared}
    places = {members: Shard.among(made, timeout_s) for members, made in groups.items() if rank in members}
    stages = []
    for index, stage in enumerate(program.stages):
        members = tuple(stage.ranks)
        if rank in members:
            stages.append(Stage(index, stage.name, stage.layers, places.get(members), stage.recomputes))
    return stages
