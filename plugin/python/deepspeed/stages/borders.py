# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's transfers do to tensors, where a plan transfers nothing.

    cross_as_in_1f1b(parts, module.layers_here())     # DeepSpeed's partition, and the layers of this rank
    with evaluation():
        run_the_forwards()

A gradient that comes back over a border of DeepSpeed's own partition is contiguous, because the activation is:
DeepSpeed sends nothing else. Within a stage it lies as the operators have made it (behind a transpose, for
example), and kernels may add in another order over other strides. ostinato's own transfers keep the order of
dimensions, so that without them and with them a plan computes what 1F1B does.

In an evaluation no tensor that has crossed such a border requires a gradient, whatever the layer before it has
set: torch chooses kernels by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from ostinato.profile.model.tensors import map_tensors, tensors


_evaluations = 0  # under way; not in the hooks, which a script may pickle with a layer


def cross_as_in_1f1b(parts: list[int], layers: dict[int, Any]) -> None:
    """For good. Only where one of the two layers is a module that no other layer uses, too."""
    functions = list(layers.values())

    def own_module(layer: int) -> torch.nn.Module | None:
        function = layers.get(layer)
        alone = sum(other is function for other in functions) == 1
        return function if isinstance(function, torch.nn.Module) and alone else None

    for border in parts[1:-1]:
        if (after := own_module(border)) is not None:
            after.register_forward_pre_hook(_of_inputs)
        elif (before := own_module(border - 1)) is not None:
            before.register_forward_hook(_of_outputs)


@contextmanager
def evaluation() -> Iterator[None]:
    """Around an evaluation. A re-entrant checkpoint disables gradients, too, so that does not tell."""
    global _evaluations
    _evaluations += 1
    try:
        yield
    finally:
        _evaluations -= 1


def _of_inputs(module: torch.nn.Module, inputs: Any) -> Any:
    if _evaluations:
        return map_tensors(lambda tensor: tensor.detach() if tensor.requires_grad else tensor, inputs)
    for tensor in tensors(inputs):
        if tensor.requires_grad:
            tensor.register_hook(torch.Tensor.contiguous)
    return None


def _of_outputs(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    return _of_inputs(module, outputs)
