# SPDX-License-Identifier: Apache-2.0
"""Buffers of layers (BatchNorm's statistics, say), which a forward may write to: kept, compared, and put
back.

    buffers = Buffers({3: layer, 4: another})
    before = buffers.now()
    ...                                  # a forward that is not to count
    buffers.changed(before)              # ["3.running_mean"]
    buffers.restore(before)

It is the only state of a layer that a forward may change, beside torch's generators (docs/deepspeed.md).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Kept = dict[
    tuple[str, str], tuple[torch.Tensor | None, torch.Tensor | None]
]  # by module and name: the tensor, and a copy of it


def modules_of(function: Any) -> list[torch.nn.Module]:
    """What runs where a PipelineModule has the function: a layer, or of tied ones a partial() of their
    forward_fn. Layers have `args` themselves."""
    inside = (function, *function.args) if isinstance(function, partial) else (function,)
    return [value for value in inside if isinstance(value, torch.nn.Module)]


class Buffers:
    """`functions`: what runs, by a name for it; modules, and functions that are given some (of tied layers)."""

    def __init__(self, functions: Mapping[Any, Any]):
        self._modules = {
            f"{name}{inner and '.'}{inner}": module
            for name, function in functions.items()
            for held in modules_of(function)
            for inner, module in held.named_modules()
            if module._buffers
        }

    def now(self) -> Kept:
        return {
            (of, name): (tensor, None if tensor is None else tensor.clone())
            for of, name, tensor in self._tensors()
        }

    def restore(self, kept: Kept) -> None:
        for (of, name), (tensor, copy) in kept.items():
            if tensor is not None and copy is not None:
                with torch.no_grad():
                    tensor.copy_(copy)
            self._modules[of]._buffers[name] = tensor

    def changed(self, kept: Kept) -> list[str]:
        return [
            f"{of}.{name}"
            for of, name, tensor in self._tensors()
            if not _same(kept.get((of, name), (None, None))[1], tensor)
        ]

    @contextmanager
    def as_they_were(self, kept: Kept) -> Iterator[None]:
        """While it lasts; what they are then is dropped."""
        now = self.now()
        self.restore(kept)
        try:
            yield
        finally:
            self.restore(now)

    def _tensors(self) -> Iterator[tuple[str, str, torch.Tensor | None]]:
        for of, module in self._modules.items():
            for name, tensor in module._buffers.items():
                yield of, name, tensor


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    )
