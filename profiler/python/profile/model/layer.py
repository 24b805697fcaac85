# SPDX-License-Identifier: Apache-2.0
"""One layer of a chain or graph, and how it is run: on copies of its inputs, with gradients where the model
has them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ostinato.profile.errors import ProfileError, place_of
from ostinato.profile.machine.device import Cpu
from ostinato.profile.model.outputs import Staying, stays
from ostinato.profile.model.tensors import Copies, differentiable, has_gaps, map_tensors, tensors, unusable


@dataclass
class Layer:
    """One layer that is measured. `run` takes `inputs` and gives its outputs, or the loss where it is the
    last."""

    index: int
    name: str
    run: Callable[[Any], Any]
    inputs: Any
    outputs: Any
    parameters: list[nn.Parameter]  # that are trained
    parameter_bytes: int  # frozen parameters and buffers as well
    # By tensor of the inputs: whether a backward goes on behind it, to something that learns.
    reached: list[bool]
    checkpointed: bool  # `run` recomputes it: recomputed()
    device: Any = field(default_factory=Cpu)
    experts: bool = False  # some are in it: experts_in()
    stays: Staying = Staying("")  # of its outputs (outputs.py); known when it has run
    varies: bool = False  # it keeps more in one repeat than in the next: a layer that skips itself at random
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of the tensors that `run` gives
    # By tensor of what `run` gives: whether a backward can start there.
    flows: list[bool] = field(default_factory=list)
    wanted: list[bool] | None = (
        None  # by tensor of what `run` gives: whether a gradient arrives; None: wherever one can
    )


class Copied(torch.autograd.Function):
    """Like clone(), where the copy is there already."""

    @staticmethod
    def forward(_ctx: Any, _leaf: torch.Tensor, copy: list[torch.Tensor]) -> torch.Tensor:
        return copy[0]

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def prepare(layer: Layer) -> tuple[list[torch.Tensor], Any]:
    """Leaves, which get the gradients of the inputs, and copies of them for the layer: it may work in place,
    which a leaf would refuse."""
    leaves: list[torch.Tensor] = []
    reached, copies = iter(layer.reached), Copies()

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if not next(reached, False):
            return copies.of(tensor.detach())
        leaf = tensor.detach().requires_grad_()
        leaves.append(leaf)
        return Copied.apply(leaf, [copies.of(tensor.detach())]) if has_gaps(leaf) else leaf.clone()

    for parameter in layer.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return leaves, map_tensors(copy, layer.inputs)


def autocast_of(engine: Any) -> torch.dtype | None:
    """The type of `torch_autocast` in the configuration of DeepSpeed's engine; None: it is off."""
    if not engine.torch_autocast_enabled():
        return None
    return engine.torch_autocast_dtype() or torch.get_autocast_dtype(engine.device.type)


def under_autocast(run: Callable, device: torch.device, dtype: torch.dtype | None) -> Callable:
    """`run` as DeepSpeed's engine calls a layer with `torch_autocast`; None: as it is."""
    return run if dtype is None else functools.partial(_under_autocast, run, device.type, dtype)


def _under_autocast(run: Callable, device: str, dtype: torch.dtype, *inputs: Any, **named: Any) -> Any:
    with torch.autocast(device, dtype):
        return run(*inputs, **named)


def recomputed(run: Callable) -> Callable:
    """`run` as DeepSpeed checkpoints a layer. A loss goes around this: DeepSpeed checkpoints none."""
    return functools.partial(checkpoint, run, use_reentrant=False)


def roots_of(layer: Layer, outputs: Any) -> list[torch.Tensor]:
    """The outputs that a gradient arrives at."""
    wanted = iter(layer.wanted or ())
    return [tensor for tensor in tensors(outputs) if next(wanted, True) and tensor.requires_grad]


@contextmanager
def named_in_errors(layer: Layer, phase: str) -> Iterator[None]:
    """Whatever the layer raises becomes a ProfileError that names it. `phase`: "forward", "backward", ..."""
    try:
        yield
    except Exception as error:
        raise ProfileError(
            f"layer {layer.name} raised {type(error).__name__} in its {phase}{place_of(error)}: {error}"
        ) from error


def run_once(layer: Layer) -> Any:
    """The outputs, detached; sets `flows` and `shapes`."""
    with named_in_errors(layer, "forward"), torch.enable_grad():
        outputs = layer.run(prepare(layer)[1])
    if (found := unusable(outputs)) is not None:
        raise ProfileError(
            f"layer {layer.name} gives {found[0]}: {found[1]}, or merge the layers that pass it on into one"
        )
    layer.stays = stays(outputs)
    layer.shapes = [tuple(tensor.shape) for tensor in tensors(outputs)]
    layer.flows = [tensor.requires_grad and differentiable(tensor) for tensor in tensors(outputs)]
    return map_tensors(torch.Tensor.detach, outputs)


def run_both_ways(layer: Layer) -> list[torch.Tensor]:
    """Forward and backward, not measured. Returns the leaves: those with a gradient got one from the
    backward."""
    with torch.enable_grad():
        leaves, inputs = prepare(layer)
        with named_in_errors(layer, "forward"):
            roots = roots_of(layer, layer.run(inputs))
        with named_in_errors(layer, "backward"):
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return leaves
