# SPDX-License-Identifier: Apache-2.0
"""Layers that differ in an index only (`layer_idx`), so that one measurement serves them all.

A name that sounds like an index is not believed: two layers are alike where they are of one class, equal in
all that Keys compares but such numbers, and one forward and backward of each calls the same operators with
the same shapes and arguments, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.profile.errors import ProfileError
from ostinato.profile.model.identity import Keys
from ostinato.profile.model.layer import Layer, prepare, run_both_ways


def described(value: Any) -> Any:
    """An argument of an operator; of tensors only what their cost depends on."""
    if isinstance(value, torch.Tensor):
        return (
            tuple(value.shape),
            torch.Tensor.stride(value) if value.layout == torch.strided else (),
            value.dtype,
            value.device,
        )
    if isinstance(value, (list, tuple)):
        return tuple(described(item) for item in value)
    return repr(value)


class Calls(TorchDispatchMode):
    """Every operator that is called, with its arguments, but detach(), which computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else torch never again compiles what it first meets under a mode."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = tuple(
            (name, described(value))
            for name, value in (kwargs or {}).items()
            if not isinstance(value, torch.Generator)
        )
        if function is not torch.ops.aten.detach.default:
            self.made.append((str(function), described(args), named))
        return function(*args, **(kwargs or {}))


def calls_of(layer: Layer) -> list[Any] | None:
    """Of one forward and backward; None where it raises, which its measurement will say."""
    prepare(layer)  # makes the gradients of its parameters
    try:
        with Calls() as calls:
            run_both_ways(layer)
    except ProfileError:
        return None
    return calls.made


class Alike:
    """The layers that are measured, by kind."""

    def __init__(self) -> None:
        self.known: dict[Any, list[tuple[Layer, nn.Module, Any]]] = {}
        self.calls: dict[int, list[Any] | None] = {}  # by index of the layer

    def measured(self, kind: Any, layer: Layer, module: nn.Module) -> Layer | None:
        """The earlier layer that this one is alike; None where there is none, and the layer stands for those
        that follow."""
        key, rows = Keys(indices=False).module(module), self.known.setdefault(kind, [])
        for other, _, known in rows:
            if known == key and self._calls(other) is not None and self._calls(other) == calls_of(layer):
                return other
        rows.append((layer, module, key))
        return None

    def _calls(self, layer: Layer) -> list[Any] | None:
        if layer.index not in self.calls:
            self.calls[layer.index] = calls_of(layer)
        return self.calls[layer.index]
