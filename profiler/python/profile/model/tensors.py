# SPDX-License-Identifier: Apache-2.0
"""Values that layers pass to each other: tensors, and tuples, lists, dicts, dataclasses and pytrees of them."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum)


def is_record(value: Any) -> bool:
    """An instance of a dataclass that pytrees do not know."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def parts(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """The contents of a container, and how to make a new one from contents; None: not a container."""
    kind = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value), lambda items: kind(*items)
    if kind is torch.Size:
        return None
    # Transformers' ModelOutput, OrderedDict, ...
    if kind not in (tuple, list, dict) and kind in SUPPORTED_NODES:
        items, context = SUPPORTED_NODES[kind].flatten_fn(value)
        return list(items), lambda items: SUPPORTED_NODES[kind].unflatten_fn(items, context)
    if isinstance(value, (tuple, list)):
        return list(value), kind
    if isinstance(value, Mapping):
        keys = list(value)
        return [value[key] for key in keys], lambda items: kind(zip(keys, items, strict=True))
    if is_record(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [getattr(value, name) for name in names], lambda items: record_like(value, names, items)
    return None


def record_like(value: Any, names: list[str], items: list[Any]) -> Any:
    made = copy.copy(value)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(made, name, item)
    return made


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same structure, with `function` applied to each tensor; other values stay."""
    if isinstance(value, torch.Tensor):
        return function(value)
    split = parts(value)
    if split is None:
        return value
    items, make = split
    return make([map_tensors(function, item) for item in items])


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those that say where numbers are: a dimension of one has none, and no tensor that is no plain memory."""
    if kind_of(tensor):
        return ()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in steps)


class Copies:
    """Copies of tensors with the strides that they have: what is not contiguous, some operators copy. Tensors in one
    memory are in one again."""

    def __init__(self) -> None:
        self.memory: dict[int, torch.UntypedStorage] = {}  # by where it was

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if not has_gaps(tensor):
            return tensor.clone()
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in self.memory:
            # Of torch's allocator, which counts it; clone()'s is not.
            made = torch.empty(memory.nbytes(), dtype=torch.uint8, device=tensor.device).untyped_storage()
            self.memory[memory.data_ptr()] = made.copy_(memory)
        # No view of it: it may be worked on in place.
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = self.memory[memory.data_ptr()]
        return copy.set_(place, tensor.storage_offset(), tensor.shape, tensor.stride())


def has_gaps(tensor: torch.Tensor) -> bool:
    """Or numbers that lie on each other: clone() would not keep its strides."""
    if kind_of(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return strides_of(torch.empty_like(tensor, device="meta")) != strides_of(tensor)


def moved(value: Any, device: Any) -> Any:
    return map_tensors(lambda tensor: tensor.to(device.place), value)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for item in (parts(value) or ([], None))[0]:
        yield from tensors(item)


def bytes_of(value: Any) -> int:
    """The bytes that a transfer of its tensors carries."""
    return sum(t.numel() * t.element_size() for t in tensors(value))


def differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def kind_of(tensor: torch.Tensor) -> str:
    """In words, of a tensor that is no plain memory; empty: it is."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a sparse tensor ({tensor.layout})"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"a tensor of class {type(tensor).__name__}"
    return ""


def unusable(value: Any) -> tuple[str, str] | None:
    """The first part of a value that layers cannot pass on, and what would be right; None if there is none."""
    if isinstance(value, torch.Tensor):
        kind = kind_of(value)
        return (
            (kind, "make it a dense tensor (to_dense(), dequantize(), padding): ranks send only these")
            if kind
            else None
        )
    split = parts(value)
    if split is None:
        if isinstance(value, PLAIN):
            return None
        return (
            f"an object of {type(value).__name__}, which hides its tensors",
            "return tensors, or tuples, lists, dicts or dataclasses of them",
        )
    return next(filter(None, map(unusable, split[0])), None)
