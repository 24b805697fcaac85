# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's transfers do to gradients, where a plan transfers nothing.

    lay_out_gradients(parts, module.layers_here())     # DeepSpeed's partition, and the layers of this rank

A gradient that comes back over a border of DeepSpeed's own partition is contiguous, because the activation is:
DeepSpeed sends nothing else. Within a stage it lies as the operators have made it (behind a transpose, for
example), and kernels may add in another order over other strides. ostinato's own transfers keep the order of
dimensions, so that without them and with them a plan computes what 1F1B does.
"""

from __future__ import annotations

from typing import Any

import torch
from ostinato.profile.model.tensors import tensors


def lay_out_gradients(parts: list[int], layers: dict[int, Any]) -> None:
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


def _of_inputs(module: torch.nn.Module, inputs: Any) -> None:
    for tensor in tensors(inputs):
        if tensor.requires_grad:
            tensor.register_hook(torch.Tensor.contiguous)


def _of_outputs(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
    _of_inputs(module, outputs)
