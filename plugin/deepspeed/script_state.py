# SPDX-License-Identifier: Apache-2.0
"""What layers read and write beside themselves: globals of the script, what functions close over, attributes of classes and objects.

    script = ScriptState({3: layer, "loss": loss_fn})     # or a LayerSpec, of a layer that another rank has
    before = script.now()
    ...                                                   # forwards
    script.changed(before)                                # places that are not what they were
    script.restore(before)

Found from the code: by the names that functions of a layer's classes use, and through what these hold. What a library keeps is looked at
as the script's own; the standard library's, NumPy's, torch's and DeepSpeed's is not. Modules that are no part of a layer are `hidden`: what
their buffers and attributes are, a ForwardState sees to.
"""

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .changing import DEEPEST, LARGEST, content_of, fill, generators_of, held_in, is_another, is_container, same_content, set_generator
from .layer_state import HOOKS, NO_ATTRIBUTES, TENSOR_HOOKS
from .random_state import same

NOT_ITS_OWN = {*sys.stdlib_module_names, "torch", "numpy", "deepspeed", "ostinato", "triton"} - {"__main__"}
MOST = 4000  # places of a layer


@dataclass(eq=False)
class Place:
    """Where something is kept. `read` gives what `write` puts back."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    differs: Callable[[Any, Any], bool]
    layers: list[Any] = field(default_factory=list)  # that reach it


class ScriptState:
    """Of some layers."""

    def __init__(self, layers: Mapping[Any, Any], backwards: bool = True):
        """`backwards`: what only their hooks on backwards use counts, too."""
        self._places: dict[tuple, Place] = {}
        self.hidden: list[torch.nn.Module] = []
        for number, layer in layers.items():
            search = Search(self._places, number, backwards)
            search.layer(layer)
            self.hidden += search.hidden
        self._kept: list[Any] = list(layers.values())

    def now(self) -> list[tuple[Place, Any]]:
        return [(place, place.read()) for place in self._places.values()]

    @staticmethod
    def changed(before: list[tuple[Place, Any]]) -> list[Place]:
        return [place for place, was in before if place.differs(was, place.read())]

    @staticmethod
    def restore(before: list[tuple[Place, Any]]) -> None:
        for place, was in before:
            if place.differs(was, place.read()):
                place.write(was)

    def only(self, places: list[Place]) -> None:
        """The others do not change."""
        self._places = {key: place for key, place in self._places.items() if place in places}


class Search:
    """From one layer. Places that others have found are the same."""

    def __init__(self, places: dict[tuple, Place], layer: Any, backwards: bool = True):
        self._places, self._layer, self._seen, self._depth, self._backwards = places, layer, set[int](), 0, backwards
        self._parts: set[int] = set()  # modules of the layer, which see to themselves
        self._alive: list[Any] = []  # whose ids count
        self.hidden: list[torch.nn.Module] = []

    def layer(self, layer: Any) -> None:
        if isinstance(layer, torch.nn.Module):
            self._module(layer)
        elif hasattr(layer, "module_args"):  # a LayerSpec
            for value in (layer.typename, *layer.module_args, *layer.module_kwargs.values(), getattr(layer, "forward_fn", None)):
                self.look(value, f"a {type(value).__name__} that its LayerSpec is given")
        else:
            self.look(layer, "a layer")

    def _module(self, layer: torch.nn.Module) -> None:
        self._parts |= {id(module) for module in layer.modules()}
        for module in layer.modules():
            self.look(type(module), "")
            for name, value in vars(module).items():
                if name in HOOKS:
                    self._all(value.values() if self._backwards or "backward" not in name else (), "")
                elif name not in NO_ATTRIBUTES:
                    self.look(value, f'the attribute "{name}" of a {type(module).__name__}')
        for parameter in layer.parameters() if self._backwards else ():
            for name in TENSOR_HOOKS:
                self._all((getattr(parameter, name, None) or {}).values(), "")

    def look(self, value: Any, words: str) -> None:
        if id(value) in self._seen or self._depth > DEEPEST or len(self._seen) > MOST or isinstance(value, _PLAIN):
            return
        self._seen.add(id(value))
        self._alive.append(value)
        self._depth += 1
        self._into(value, words)
        self._depth -= 1

    def _into(self, value: Any, words: str) -> None:
        if isinstance(value, functools.partial):
            self._all((value.func, *value.args, *value.keywords.values()), words)
        elif isinstance(value, types.MethodType):
            self._all((value.__func__, value.__self__), words)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, staticmethod | classmethod):
            self.look(value.__func__, words)
        elif isinstance(value, property):
            self._all((value.fget, value.fset), words)
        elif isinstance(value, type):
            self._class(value)
        elif is_container(value):
            self._container(value, words)
        elif isinstance(value, tuple | frozenset):
            self._all(value, words)
        elif generators_of(value):
            read = lambda: generators_of(value)[0][1]  # noqa: E731
            self._note(("generator", id(value)), Place(words, read, lambda was: set_generator(value, was), lambda was, now: not same(was, now)))
        elif isinstance(value, torch.Tensor):
            self._tensor(value, words)
        elif isinstance(value, torch.nn.Module):
            if id(value) not in self._parts and not is_a_pipeline(value):
                self._hidden(value, words)
        elif is_the_scripts(type(value).__module__):
            self._object(value, words)

    def _hidden(self, module: torch.nn.Module, words: str) -> None:
        """No part of the layer, which uses it."""
        self.hidden += module.modules()
        self._module(module)

    def _container(self, value: Any, words: str) -> None:
        differs = lambda was, now: not same_content(was, now)  # noqa: E731
        self._note(("content", id(value)), Place(words, lambda: content_of(value), lambda was: fill(value, was), differs))
        self._all(held_in(value), words)
        if is_the_scripts(type(value).__module__):
            self._object(value, words)

    def _object(self, value: Any, words: str) -> None:
        self.look(type(value), "")
        of = words or "a " + type(value).__name__
        for name, held in list(getattr(value, "__dict__", {}).items()):
            self._attribute(vars(value), name, held, f'"{name}" of {of}')
        for name in _slots(type(value)):
            if hasattr(value, name):
                read, write = functools.partial(getattr, value, name, None), functools.partial(object.__setattr__, value, name)
                self._note((id(value), name), Place(f'"{name}" of {of}', read, write, _is_another))
                self.look(read(), f'"{name}" of {of}')

    def _all(self, values: Iterable[Any], words: str) -> None:
        for value in list(values)[:MOST]:
            self.look(value, words)

    def _function(self, function: types.FunctionType) -> None:
        if not is_the_scripts(function.__module__):
            return
        for name in dict.fromkeys(_names(function.__code__)):
            self._global(function.__globals__, name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cell(cell, f'"{name}" of {function.__qualname__.split(".<locals>")[0]}()')
        self._all((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), "")

    def _global(self, table: dict, name: str) -> None:
        value = table.get(name, _NOTHING)
        if isinstance(value, types.ModuleType) and is_the_scripts(value.__name__):
            return  # a name of its own may be used of it; which one, code does not say
        if value is not _NOTHING and not isinstance(value, types.ModuleType):
            self._attribute(table, name, value, f'the global "{name}"')

    def _attribute(self, table: dict, name: str, value: Any, words: str) -> None:
        if not isinstance(value, _CODE) and not isinstance(value, torch.nn.Module):
            self._note((id(table), name), Place(words, lambda: table.get(name), lambda was: table.__setitem__(name, was), _is_another))
        self.look(value, words)

    def _cell(self, cell: types.CellType, words: str) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            return
        if not isinstance(value, _CODE):
            self._note(("cell", id(cell)), Place(words, lambda: cell.cell_contents, lambda was: setattr(cell, "cell_contents", was), _is_another))
        self.look(value, words)

    def _class(self, kind: type) -> None:
        for base in (base for base in kind.__mro__ if is_the_scripts(base.__module__)):
            for name, value in list(vars(base).items()):
                if isinstance(value, _CODE) or name.startswith("__"):
                    self.look(value, "")
                    continue
                words = f"{base.__name__}.{name}"
                read = functools.partial(getattr, base, name, None)
                self._note((id(base), name), Place(words, read, functools.partial(setattr, base, name), _is_another))
                self.look(value, words)

    def _tensor(self, tensor: torch.Tensor, words: str) -> None:
        if isinstance(tensor, torch.nn.Parameter) or tensor.grad_fn is not None or type(tensor) is not torch.Tensor:
            return
        read = lambda: (tensor._version, tensor.detach().clone() if tensor.numel() <= LARGEST else None)  # noqa: E731

        def write(was: tuple) -> None:
            if was[1] is not None:
                tensor.data.copy_(was[1])

        self._note(("tensor", id(tensor)), Place(words, read, write, lambda was, now: was[0] != now[0]))

    def _note(self, key: tuple, place: Place) -> None:
        found = self._places.setdefault(key, place)
        if self._layer not in found.layers:
            found.layers.append(self._layer)


_NOTHING = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, types.ModuleType)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, staticmethod, classmethod, property, type)


def _is_another(was: Any, now: Any) -> bool:
    return is_another(was, now, {})


def is_a_pipeline(module: torch.nn.Module) -> bool:
    """All layers, or what DeepSpeed makes of them."""
    return hasattr(module, "_layer_specs") or type(module).__module__.startswith("deepspeed.")


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if not name.startswith("__"):
                yield name


def is_the_scripts(module: Any) -> bool:
    return isinstance(module, str) and module.split(".")[0] not in NOT_ITS_OWN


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            yield from _names(held)
