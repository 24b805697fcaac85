# SPDX-License-Identifier: Apache-2.0
"""Layers that have left this rank, of which a script may hold references: what it reads there is old, and what it changes reaches nothing.

    let_go(module, 'layer "3"', 1)      # from here on, what uses the module or a parameter of it raises OstinatoError by name

What a parameter is (its shape, how many numbers) stays to be asked for, and so does what a module is made of: a script may count.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from .errors import OstinatoError

_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "itemsize", "nbytes", "is_cuda", "is_cpu", "is_meta", "is_sparse")
_METHODS = ("size", "numel", "nelement", "dim", "ndimension", "element_size", "stride", "is_floating_point", "is_complex", "__len__")
ASKED = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES} | {getattr(torch.Tensor, name) for name in _METHODS}

# Of a module: those that look at what it is made of. Any other attribute of the object is its state.
MADE_OF = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "ostinato_left"}
WORKS = {"forward", "train", "eval", "state_dict", "load_state_dict", "apply", "_apply"}


class Left:
    """Mixed in before the class that a module had."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name not in MADE_OF:
            held = object.__getattribute__(self, "__dict__")
            if name in held or name in held["_buffers"] or name in WORKS or name.startswith("register_"):
                raise OstinatoError(held["ostinato_left"])
        return super().__getattribute__(name)

    def __setattr__(self, name: str, _value: Any) -> None:
        raise OstinatoError(object.__getattribute__(self, "__dict__")["ostinato_left"])

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise OstinatoError(object.__getattribute__(self, "__dict__")["ostinato_left"])

    def __repr__(self) -> str:
        return f"<{object.__getattribute__(self, '__dict__')['ostinato_left']}>"


class LeftParameter(nn.Parameter):
    """What a parameter becomes: no operator takes it."""

    ostinato_left: str

    @classmethod
    def __torch_function__(cls, function, _types, args=(), kwargs=None):
        if function in ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        raise OstinatoError(next(value.ostinato_left for value in flat((args, kwargs)) if isinstance(value, LeftParameter)))

    def __setattr__(self, name: str, _value: Any) -> None:
        raise OstinatoError(self.ostinato_left)

    def __repr__(self) -> str:  # type: ignore[override]  # of a tensor it takes its contents, too
        return f"<{self.ostinato_left}>"


def let_go(module: nn.Module, layer: str, rank: int, given: set[int]) -> None:
    """`layer`: in words; `rank`: where it is now; `given`: ids of modules and parameters that the script made by itself, and has on all ranks."""
    parts = [(name, part) for name, part in module.named_modules() if id(part) not in given]
    parameters = [(name, p) for name, p in module.named_parameters() if id(p) not in given and type(p) is nn.Parameter]
    for name, parameter in parameters:
        parameter.ostinato_left = _words(f'"{name}" of {layer}', rank)  # type: ignore[attr-defined]  # a mark of our own
        parameter.__class__ = LeftParameter
    for name, part in parts:
        vars(part)["ostinato_left"] = _words(f'"{name}" of {layer}' if name else layer, rank)
        with suppress(TypeError):  # of a class whose objects are made otherwise, as TorchScript's
            part.__class__ = type(type(part).__name__, (Left, type(part)), {"__module__": type(part).__module__})


def given_to(spec: Any) -> set[int]:
    """Ids of modules and tensors in the arguments of a LayerSpec, which the script has made."""
    arguments = (*getattr(spec, "module_args", ()), *getattr(spec, "module_kwargs", {}).values())
    tensors = [value for value in flat(arguments) if isinstance(value, torch.Tensor)]
    modules = [value for value in flat(arguments) if isinstance(value, nn.Module)]
    return {id(held) for module in modules for held in (*module.modules(), *module.parameters())} | set(map(id, tensors))


def _words(what: str, rank: int) -> str:
    return (
        f"{what} has moved to rank {rank}, and this is what it was before: take layers and parameters from engine.module after deepspeed.initialize() "
        '(with "auto": after the first train_batch())'
    )


def flat(value: Any) -> Iterable[Any]:
    """What containers in each other hold, and `value` itself where it is none."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, list | tuple | set | frozenset):
        return [value]
    return [found for item in value for found in flat(item)]
