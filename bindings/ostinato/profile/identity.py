"""When two layers are the same, so that one measurement serves both: same class, configuration, shapes and inputs.

Whatever cannot be compared by value counts as different unless it is the same object.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# A module's tensors and submodules are compared by shape below; `training` is a plain value like the others.
SHAPED = ("_parameters", "_buffers", "_modules")


def value_key(value: Any, types: bool = True) -> Any:
    """A hashable value that is equal for equal configuration values. Objects stand for themselves (by identity: keep
    them alive while keys are compared)."""
    if isinstance(value, PLAIN):
        return type(value).__name__, value
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(value_key(item, types) for item in value)
    if isinstance(value, dict):
        return "dict", tuple((value_key(key), value_key(item, types)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return "set", frozenset(value_key(item, types) for item in value)
    if isinstance(value, nn.Module):
        return module_key(value, types)
    return "object", id(value)


def shape_key(value: Any, types: bool = True) -> Any:
    """Shape and type of every tensor, and plain values as they are."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype if types else None, value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple(shape_key(item, types) for item in value)
    if isinstance(value, dict):
        return tuple((key, shape_key(item, types)) for key, item in value.items())
    return value_key(value, types)


def module_key(module: nn.Module, types: bool = True) -> Any:
    """`types`: whether the types of its tensors belong to it."""
    own = tuple((name, value_key(item, types)) for name, item in sorted(vars(module).items()) if name not in SHAPED)
    held = tuple(
        (name, shape_key(t, types)) for kind in ("_parameters", "_buffers") for name, t in getattr(module, kind).items()
    )
    children = tuple((name, value_key(child, types)) for name, child in module._modules.items())
    return type(module), own, held, children


def layer_key(layer: Any) -> Any:
    """Of a LayerSpec before it is built, of a module, or of a callable."""
    tied = (layer.key, id(layer.forward_fn)) if hasattr(layer, "forward_fn") else None
    if hasattr(layer, "left"):  # the script has changed what the LayerSpec built (left.py)
        return "left", module_key(layer.left), tied
    if hasattr(layer, "typename"):
        return "spec", layer.typename, value_key(layer.module_args), value_key(layer.module_kwargs), tied
    return value_key(layer)
