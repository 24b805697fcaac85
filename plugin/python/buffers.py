# SPDX-License-Identifier: Apache-2.0
"""Saves, compares and restores the buffers of layers (BatchNorm's statistics, for example), which a forward may
write to.

    buffers = Buffers({3: layer, 4: another})
    before = buffers.now()
    ...                                  # a forward that should not count
    buffers.changed(before)              # ["3.running_mean"]
    buffers.restore(before)

Buffers and torch's generators are the only state that a layer's forward may change (docs/deepspeed.md).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

# By module and name: the tensor, and a copy of it.
Kept = dict[tuple[str, str], tuple[torch.Tensor | None, torch.Tensor | None]]


def modules_of(function: Any) -> list[torch.nn.Module]:
    """The modules behind a function of a PipelineModule: a layer, or for tied ones a partial() of their
    forward_fn. (Layers may have an attribute `args`, too.)"""
    inside = (function, *function.args) if isinstance(function, partial) else (function,)
    return [value for value in inside if isinstance(value, torch.nn.Module)]


class Buffers:
    """`functions`: by name, modules, and functions that take modules as arguments (of tied layers). `modules`: by
    name, these and all within them."""

    def __init__(self, functions: Mapping[Any, Any]):
        self.modules = {
            f"{name}{inner and '.'}{inner}": module
            for name, function in functions.items()
            for held in modules_of(function)
            for inner, module in held.named_modules()
        }

    def now(self) -> Kept:
        return {
            (of, name): (tensor, None if tensor is None else tensor.clone())
            for of, name, tensor in self._tensors()
        }

    def restore(self, kept: Kept) -> None:
        """Buffers that were registered since go."""
        for of, name in [(of, name) for of, name, _ in self._tensors() if (of, name) not in kept]:
            del self.modules[of]._buffers[name]
        for (of, name), (tensor, copy) in kept.items():
            if tensor is not None and copy is not None and not _expanded(tensor):
                with torch.no_grad():
                    tensor.copy_(copy)
            self.modules[of]._buffers[name] = tensor

    def changed(self, kept: Kept) -> list[str]:
        return [
            f"{of}.{name}"
            for of, name, tensor in self._tensors()
            if not _same(kept.get((of, name), (None, None))[1], tensor)
        ]

    @contextmanager
    def as_they_were(self, kept: Kept) -> Iterator[None]:
        """Restores `kept` inside the with block; changes made there are dropped."""
        now = self.now()
        self.restore(kept)
        try:
            yield
        finally:
            self.restore(now)

    def _tensors(self) -> Iterator[tuple[str, str, torch.Tensor | None]]:
        for of, module in self.modules.items():
            for name, tensor in module._buffers.items():
                yield of, name, tensor


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_numbers(a), _numbers(b))


def _expanded(tensor: torch.Tensor) -> bool:
    """Torch refuses writes to it."""
    return tensor.layout == torch.strided and any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Not-a-number is equal to itself here, and -0 is not 0."""
    return as_bytes(tensor if tensor.layout == torch.strided else tensor.to_dense())


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, which every backend can send for any dtype. A view where it is contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.contiguous().as_strided((tensor.numel(),), (1,))  # one element has any strides
    return flat.view(torch.uint8)
