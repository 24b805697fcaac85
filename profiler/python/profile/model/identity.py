# SPDX-License-Identifier: Apache-2.0
"""When two layers are the same, so that one measurement serves both: same class, configuration, shapes and
inputs.

Whatever cannot be compared by value counts as different unless it is the same object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ostinato.profile.model.tensors import strides_of, tensors

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# A module's tensors and submodules are compared by shape below; `training` is a plain value like the others.
SHAPED = ("_parameters", "_buffers", "_modules")
INDEX = re.compile(r"(^|_)(idx|index|id|i)$|(layer|block|stage)_?(number|num|no|nr)$")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # in the name of a module: model.layers.3.mlp, as peft keeps it


@dataclass(frozen=True)
class Keys:
    """Makes hashable values that are equal for equal things."""

    types: bool = True  # whether the types of tensors belong to it
    # whether whole numbers do that a module keeps under the name of an index (layer_idx), or in the name of a module
    indices: bool = True
    around: list[int] = field(default_factory=list, compare=False)  # ids of what the value lies in

    def value(self, value: Any) -> Any:
        """Of a configuration value. Objects that are no dataclasses stand for themselves (by identity: keep them alive while keys are
        compared)."""
        if isinstance(value, str) and not self.indices:
            return "str", NUMBER.sub("", value)
        if isinstance(value, PLAIN):
            return type(value).__name__, value
        if isinstance(value, (list, tuple)):
            return type(value).__name__, tuple(self.value(item) for item in value)
        if isinstance(value, dict):
            return "dict", tuple((self.value(key), self.value(item)) for key, item in value.items())
        if isinstance(value, (set, frozenset)):
            return "set", frozenset(self.value(item) for item in value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if is_dataclass(value) and not isinstance(value, type):  # a configuration, as peft copies it
            return self._once(value, self._fields)
        return "object", id(value)

    def _fields(self, value: Any) -> Any:
        return type(value), self.value(vars(value)) if hasattr(value, "__dict__") else id(value)

    def _once(self, value: Any, key_of: Callable[[Any], Any]) -> Any:
        """A child may hold its parent: inside of its key it stands for itself by how far out it is."""
        if id(value) in self.around:
            return "around", len(self.around) - self.around.index(id(value))
        self.around.append(id(value))
        try:
            return key_of(value)
        finally:
            self.around.pop()

    def shapes(self, value: Any) -> Any:
        """Shape and type of every tensor, and plain values as they are."""
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), value.dtype if self.types else None, value.requires_grad
        if isinstance(value, (list, tuple)):
            return tuple(self.shapes(item) for item in value)
        if isinstance(value, dict):
            return tuple((key, self.shapes(item)) for key, item in value.items())
        return self.value(value)

    def module(self, module: nn.Module) -> Any:
        return self._once(module, self._module)

    def _module(self, module: nn.Module) -> Any:
        counted = [
            name for name, item in vars(module).items() if name not in SHAPED and self._counts(name, item)
        ]
        own = tuple((name, self.value(vars(module)[name])) for name in sorted(counted))
        held = tuple(
            (name, self.shapes(t))
            for kind in ("_parameters", "_buffers")
            for name, t in getattr(module, kind).items()
        )
        children = tuple((name, self.value(child)) for name, child in module._modules.items())
        return type(module), own, held, children

    def _counts(self, name: str, value: Any) -> bool:
        return self.indices or type(value) is not int or not INDEX.search(name)


def value_key(value: Any) -> Any:
    return Keys().value(value)


def shape_key(value: Any) -> Any:
    return Keys().shapes(value)


def input_key(value: Any) -> Any:
    """Of what a layer reads."""
    return shape_key(value), tuple(map(strides_of, tensors(value)))


def layer_key(layer: Any) -> Any:
    """Of a LayerSpec before it is built, of a module, or of a callable."""
    tied = (layer.key, id(layer.forward_fn)) if hasattr(layer, "forward_fn") else None
    # The script has changed what the LayerSpec built (script/changed_layers.py).
    if hasattr(layer, "changed_to"):
        return "changed", value_key(layer.changed_to), tied
    if hasattr(layer, "typename"):
        return "spec", layer.typename, value_key(layer.module_args), value_key(layer.module_kwargs), tied
    return value_key(layer)


def structure(module: Any) -> Any:
    """Equal for layers of the same modules with tensors of the same shapes, whatever else they hold."""
    if not isinstance(module, nn.Module):
        return type(module).__qualname__
    parts = tuple((name, type(part).__qualname__) for name, part in module.named_modules())
    held = (*module.named_parameters(), *module.named_buffers())
    shapes = ((name, () if is_lazy(one) else tuple(one.shape), one.requires_grad) for name, one in held)
    return parts, tuple(shapes)


def class_key(layer: Any) -> Any:
    """Equal for layers that might be alike but for an index: the same class. None: of what no other can be
    like, a tied layer or a plain callable."""
    if hasattr(layer, "forward_fn"):
        return None
    kind = getattr(layer, "typename", type(layer))
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None
