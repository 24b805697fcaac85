# SPDX-License-Identifier: Apache-2.0
"""Cuts a transformers model down to some of its modules, such that its own forward still runs.

    carve(model, {"model.embed_tokens": Stub("before"), "model.layers.0": Stub("block", 0), ...})
    with at_stubs(call):                     # a Stub asks `call` what to return
        model(input_ids=...)

So the model's own code makes masks, positions, rotary tables and anything else that its forward makes for its
blocks, in each layer of the pipeline that needs it. Modules behind stubs are never computed, and their weights are
not there.
"""

import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, str, type(None))


class Reached(Exception):
    """Raised when the wanted value has been computed, so that the rest of the forward does not run."""

    def __init__(self, value: Any):
        self.value = value


class Stub(nn.Module):
    """Replaces a module in a model's tree. `role`: "before", "block", "head" or "after"; `index`: of a block."""

    def __init__(self, role: str, index: int = 0):
        super().__init__()
        self.role, self.index = role, index
        self.tensors: tuple[str, ...] = ()  # names of the replaced module's parameters

    def in_place_of(self, module: nn.Module) -> "Stub":
        """Takes over the module's plain attributes, and the names of its weights, for code that asks for them."""
        taken = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, PLAIN) and name not in vars(self)
        }
        vars(self).update(taken)
        self.tensors = tuple(name for name, p in module._parameters.items() if p is not None)
        for name, child in module.named_children():
            if self.role in ("before", "inner"):  # ViT asks for the dtype of its embeddings' weights
                self.add_module(name, Stub("inner").in_place_of(child))
        return self

    def forward(self, *args, **kwargs):
        return _calls[-1](self, *args, **kwargs)

    def __getattr__(self, name: str):
        if name in self.__dict__.get("tensors", ()) and _calls:
            like = _calls[-1].like
            return torch.empty(0, dtype=like.dtype, device=like.device)
        return super().__getattr__(name)


class StubCall:
    """What stubs return during one forward of a carved model. `like`: hidden states, with the weights' dtype
    and device."""

    def __init__(self, at: Callable, like: torch.Tensor):
        self._at, self.like = at, like

    def __call__(self, stub: Stub, *args, **kwargs):
        return self._at(stub, *args, **kwargs)


_calls: list[StubCall] = []  # of the forwards in progress, the innermost last


@contextlib.contextmanager
def at_stubs(call: StubCall) -> Iterator[None]:
    _calls.append(call)
    try:
        yield
    finally:
        _calls.pop()


def run(model: nn.Module, call: StubCall, inputs: dict[str, Any]) -> Any:
    """model(**inputs), or the value that a stub has reached."""
    with at_stubs(call):
        try:
            return model(**inputs)
        except Reached as reached:
            return reached.value


def hidden_of(args: tuple, kwargs: dict) -> tuple[torch.Tensor, tuple, dict]:
    """The hidden state that a model passes to a block, and the rest of the arguments."""
    if args:
        return args[0], args[1:], kwargs
    return (
        kwargs["hidden_states"],
        (),
        {name: value for name, value in kwargs.items() if name != "hidden_states"},
    )


def carve(model: nn.Module, stubs: dict[str, Stub]) -> None:
    """Puts the stubs into the model, except for stubs within another stub's place."""
    for name in sorted(stubs, key=lambda name: name.count(".")):
        above, _, last = name.rpartition(".")
        parent = _submodule(model, above)
        if parent is not None and (whole := parent._modules.get(last)) is not None:
            parent._modules[last] = stubs[name].in_place_of(whole)


def drop(model: nn.Module, keeps: Callable[[str], bool]) -> None:
    """Sets parameters that `keeps` does not want to None."""
    for where, module in model.named_modules():
        for name in (
            n
            for n, p in module._parameters.items()
            if p is not None and not keeps(f"{where}.{n}".lstrip("."))
        ):
            module._parameters[name] = None


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        return None
    return None if isinstance(found, Stub) else found


def shallow(module: nn.Module, leave: Callable[[str], bool], name: str = "") -> nn.Module:
    """Copies the modules but not their tensors, attributes and hooks; modules that `leave` names stay the same
    objects."""
    made = copy.copy(module)
    for table in ("_parameters", "_buffers", "_modules"):
        made.__dict__[table] = module.__dict__[table].copy()
    for attribute, value in vars(module).items():  # a forward that the script has bound to the module
        if isinstance(value, types.MethodType) and value.__self__ is module:
            made.__dict__[attribute] = types.MethodType(value.__func__, made)
    for child, held in module._modules.items():
        where = f"{name}.{child}".lstrip(".")
        if held is not None and not leave(where):
            made._modules[child] = shallow(held, leave, where)
    return made
