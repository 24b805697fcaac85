# SPDX-License-Identifier: Apache-2.0
"""Python values of a layer as plain data: to compare them between ranks, and to make them anew on another rank.

    mine = Own(layer)
    pack(value, mine)                  # nested tuples of plain data; equal ones are equal on every rank
    packed = pack(value, mine, True)   # strict: raises CannotMove for what another rank could not make from it
    unpack(packed, Own(other), Finder())

A value may refer to modules and tensors of its layer, by their names there. Functions travel by name: one that can be imported as
module and qualified name, any other as its place in the sources and a digest of its code. Every rank runs the same script,
so the new rank finds that code among its own functions, or inside of those that are running. Nothing executable is sent.
"""

import datetime
import decimal
import enum
import fractions
import functools
import gc
import hashlib
import os
import pathlib
import pickle
import re
import sys
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy
import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
VALUES = (  # never change
    torch.dtype, torch.layout, torch.memory_format, torch.Size, range, slice, numpy.dtype, uuid.UUID, decimal.Decimal,
    fractions.Fraction, pathlib.PosixPath, datetime.date, datetime.time, datetime.datetime, datetime.timedelta,
)  # fmt: skip
STATES = ("random", "numpy", "types", "collections")  # of random.Random, arrays, namespaces, counters
ORIGINAL = "_torchdynamo_orig_callable"  # of a compiled function: the script's
DEEPEST = 8  # objects and containers in each other
CONTAINERS = (list, dict, OrderedDict, set, deque)
NUMBERED_DEVICE = re.compile(r"([a-z]+):\d+")  # "cuda:1": another one on another rank


class CannotMove(Exception):
    """Why a value cannot be made anew on another rank."""


class Own:
    """What values of a layer may refer to by its place in the layer."""

    def __init__(self, layer: torch.nn.Module):
        self.layer = layer
        self.modules = {id(module): name for name, module in layer.named_modules()}
        tensors = [*layer.named_buffers(remove_duplicate=False), *layer.named_parameters(remove_duplicate=False)]
        self.tensors = {id(tensor): name for name, tensor in reversed(tensors)}

    def tensor(self, name: str) -> torch.Tensor:
        parent, _, last = name.rpartition(".")
        return getattr(self.layer.get_submodule(parent), last)


def digest(packed: Any) -> str:
    return hashlib.sha256(repr(packed).encode()).hexdigest()[:32]


def pack(value: Any, own: Own, strict: bool = False) -> tuple:
    """`strict`: raises CannotMove for what unpack() cannot make."""
    return _Packer(own, strict).pack(value)


class _Packer:
    def __init__(self, own: Own, strict: bool):
        self._own, self._strict = own, strict
        self._by_function = False  # what is packed is held by a function
        self._open: set[int] = set()  # containers and objects that are being packed

    def pack(self, value: Any) -> tuple:
        if type(value) in PLAIN:
            numbered = NUMBERED_DEVICE.fullmatch(value) if type(value) is str else None
            return ("device name", numbered[1]) if numbered else ("plain", value)
        if id(value) in self._own.modules:
            return ("module", self._own.modules[id(value)])
        if id(value) in self._own.tensors:
            return ("tensor", self._own.tensors[id(value)])
        if id(value) in self._open:
            return self._no(("again",), "a container that holds itself")
        self._open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self._open.discard(id(value))

    def _no(self, loose: tuple, what: str) -> tuple:
        if self._strict:
            raise CannotMove(what)
        return loose

    def _compound(self, value: Any) -> tuple:
        kind = type(value)
        if isinstance(value, torch.device):
            return ("device", value.type)
        if isinstance(value, enum.Enum):
            return ("enum", self.pack(kind), value.name)
        if isinstance(value, type):
            return ("import", *_name_of(value)) if _importable(value) else self._no(("class", *_name_of(value)), f"class {kind}")
        if kind in (tuple, frozenset, *CONTAINERS):
            return self._container(value, kind)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ("named tuple", self.pack(kind), *map(self.pack, value))
        if isinstance(value, torch.Tensor):
            return self._loose_tensor(value)
        if isinstance(value, torch.nn.Module):
            name = kind.__qualname__
            return self._no(("module elsewhere", name), f"a {name}, which is not part of the layer")
        if callable(value) and (function := self._function(value)) is not None:
            return function
        return self._object(value, kind)

    def _container(self, value: Any, kind: type) -> tuple:
        if self._strict and self._by_function and kind in CONTAINERS:
            raise CannotMove(f"a {kind.__name__}, which others may hold as well")
        if kind in (dict, OrderedDict):
            return (kind.__name__, *((self.pack(k), self.pack(v)) for k, v in value.items()))
        packed = [self.pack(item) for item in value]
        return (kind.__name__, *(sorted(packed, key=repr) if kind in (set, frozenset) else packed))

    def _loose_tensor(self, value: torch.Tensor) -> tuple:
        if isinstance(value, torch.nn.Parameter):
            return self._no(("parameter elsewhere", tuple(value.shape)), "a parameter that is not one of the layer's")
        if value.grad_fn is not None or value.layout is not torch.strided or value.is_meta:
            return self._no(("tensor elsewhere", tuple(value.shape)), "a tensor with a history")
        data = value.detach().cpu()
        if self._strict:
            return ("data", data.clone(), value.requires_grad)
        raw = data.contiguous().view(-1).view(torch.uint8).numpy().data if data.numel() else b""
        return ("data", str(data.dtype), tuple(data.shape), hashlib.sha256(raw).hexdigest())

    def _function(self, value: Any) -> tuple | None:
        if isinstance(value, types.MethodType):
            return ("method", self.pack(value.__func__), self._held(value.__self__))
        if isinstance(value, functools.partial):
            return ("partial", self.pack(value.func), tuple(map(self._held, value.args)), self._options(value.keywords))
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType) and _importable(value):
            return ("import", *_name_of(value))
        if hasattr(value, ORIGINAL):
            return self._no(("compiled", self._held(getattr(value, ORIGINAL))), "a function that torch has compiled")
        if isinstance(value, types.FunctionType):
            return self._local_function(value)
        return None

    def _held(self, value: Any) -> tuple:
        """What a function keeps: the script may hold it, too, and see it change."""
        held, self._by_function = self._by_function, True
        try:
            return self.pack(value)
        finally:
            self._by_function = held

    def _options(self, words: dict | None) -> tuple:
        return tuple((key, self._held(value)) for key, value in (words or {}).items())

    def _local_function(self, value: types.FunctionType) -> tuple:
        try:
            cells = tuple(
                self._named(name, cell) for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            )
            defaults = tuple(map(self._held, value.__defaults__ or ()))
            extras = (defaults, self._options(value.__kwdefaults__), self._options(vars(value)))
        except CannotMove as error:
            raise CannotMove(f"{words_of(value)}: {error}") from None
        alive = _still_bound(value) if self._strict else ()
        return ("function", value.__module__, code_id(value.__code__), *extras, cells, alive)

    def _named(self, name: str, cell) -> tuple:
        try:
            held = cell.cell_contents
        except ValueError:
            return (name, self._no(("empty",), f'"{name}" is not set yet'))
        try:
            return (name, self._held(held))
        except CannotMove as error:
            raise CannotMove(f'its "{name}" is {error}') from None

    def _object(self, value: Any, kind: type) -> tuple:
        name = ".".join(_name_of(kind))
        if kind in VALUES or isinstance(value, numpy.generic) or (kind.__module__ in STATES and not self._by_function):
            made = pickle.dumps(value)
            return ("pickled", made) if self._strict else ("pickled", hashlib.sha256(made).hexdigest())
        if self._strict:
            raise CannotMove(f"a {name}, which others may hold as well")
        if self._by_function or len(self._open) > DEEPEST:
            return ("object", name)
        return ("object", name, tuple((key, self.pack(item)) for key, item in _fields_of(value)))


def _fields_of(value: Any) -> list[tuple[str, Any]]:
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = [(name, getattr(value, name)) for name in slots if name not in ("__dict__", "__weakref__") and hasattr(value, name)]
    return found + list(getattr(value, "__dict__", {}).items())


def _names(slots) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _name_of(value: Any) -> tuple[str, str]:
    if isinstance(value, types.BuiltinFunctionType):  # qualified names of torch's own are of a class that nobody finds
        return value.__module__ or "builtins", value.__name__
    return getattr(value, "__module__", None) or "builtins", getattr(value, "__qualname__", type(value).__qualname__)


def _importable(value: Any) -> bool:
    return _find(*_name_of(value)) is value


def _find(module: str, name: str) -> Any:
    parent, _, last = module.rpartition(".")
    found = sys.modules[module] if module in sys.modules else getattr(sys.modules.get(parent), last, None)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def words_of(function: Any) -> str:
    """`scaled() (train.py:17)`"""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
    return f"{name}() ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else f"{name}()"


def code_id(code: types.CodeType) -> tuple[str, int, str, str]:
    """File, line, name, and what it does; the same on every rank that runs the same sources."""
    return os.path.basename(code.co_filename), code.co_firstlineno, code.co_qualname, digest(_body(code))


def _body(code: types.CodeType) -> tuple:
    held = tuple(_body(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts if not isinstance(c, frozenset))
    return code.co_code.hex(), held, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def _still_bound(function: types.FunctionType) -> tuple[str, ...]:
    """Variables of a function that is running still, which may give them other values."""
    free = set(function.__code__.co_freevars)
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if any(made is function.__code__ for made in frame.f_code.co_consts):
            names = free & set(frame.f_code.co_cellvars)
            return tuple(f"{name} of {frame.f_code.co_name}()" for name in sorted(names))
        frame = frame.f_back
    return ()


class Finder:
    """The functions of this process, by the place of their code. They are collected when the first is asked for."""

    def __init__(self):
        self._functions: dict[tuple[str, int, str], list[types.FunctionType]] = {}
        self._collected = False
        self._codes: dict[tuple[str, int, str], types.CodeType] = {}

    def functions(self, wanted: tuple) -> list[types.FunctionType]:
        self._collect()
        return [f for f in self._functions.get(wanted[:3], ()) if code_id(f.__code__) == wanted]

    def code(self, wanted: tuple) -> types.CodeType | None:
        self._collect()
        found = self._codes.get(wanted[:3])
        return found if found is not None and code_id(found) == wanted else None

    def _collect(self) -> None:
        if self._collected:
            return
        self._collected = True
        for value in gc.get_objects():
            if type(value) is types.FunctionType:
                self._functions.setdefault(_place(value.__code__), []).append(value)
                self._note(value.__code__)
        frame: types.FrameType | None = sys._getframe()
        while frame is not None:
            self._note(frame.f_code)
            frame = frame.f_back

    def _note(self, code: types.CodeType) -> None:
        if self._codes.setdefault(_place(code), code) is code:
            for held in code.co_consts:
                if isinstance(held, types.CodeType):
                    self._note(held)


def _place(code: types.CodeType) -> tuple[str, int, str]:
    return os.path.basename(code.co_filename), code.co_firstlineno, code.co_qualname


def unpack(packed: tuple, own: Own, finder: Finder, device: torch.device) -> Any:
    """What pack(..., strict=True) was given, in the layer that `own` describes. Raises CannotMove where the code is not found."""
    return _Unpacker(own, finder, device).unpack(packed)


class _Unpacker:
    def __init__(self, own: Own, finder: Finder, device: torch.device):
        self._own, self._finder, self._device = own, finder, device
        own_place = lambda kind: kind if kind != device.type else f"{kind}:{device.index}"  # noqa: E731
        self._makers: dict[str, Callable[..., Any]] = {
            "plain": lambda value: value,
            "device": lambda kind: device if kind == device.type else torch.device(kind),
            "device name": own_place,
            "module": lambda name: own.layer.get_submodule(name),
            "tensor": own.tensor,
            "import": self._import,
            "enum": lambda kind, name: self.unpack(kind)[name],
            "tuple": lambda *items: tuple(map(self.unpack, items)),
            "list": lambda *items: [*map(self.unpack, items)],
            "set": lambda *items: {*map(self.unpack, items)},
            "frozenset": lambda *items: frozenset(map(self.unpack, items)),
            "deque": lambda *items: deque(map(self.unpack, items)),
            "dict": lambda *items: {self.unpack(k): self.unpack(v) for k, v in items},
            "OrderedDict": lambda *items: OrderedDict((self.unpack(k), self.unpack(v)) for k, v in items),
            "named tuple": lambda kind, *items: self.unpack(kind)(*map(self.unpack, items)),
            "data": lambda data, trains: data.to(device).requires_grad_(trains),
            "method": lambda function, holder: types.MethodType(self.unpack(function), self.unpack(holder)),
            "partial": lambda f, args, words: functools.partial(self.unpack(f), *map(self.unpack, args), **self._options(words)),
            "function": self._function,
            "pickled": pickle.loads,
        }

    def unpack(self, packed: tuple) -> Any:
        return self._makers[packed[0]](*packed[1:])

    def _options(self, words: tuple) -> dict:
        return {key: self.unpack(value) for key, value in words}

    def _import(self, module: str, name: str) -> Any:
        found = _find(module, name)
        if found is None:
            raise CannotMove(f"{module}.{name}, which its new rank has not imported")
        return found

    def _function(self, module: str, identity: tuple, defaults: tuple, words: tuple, attributes: tuple, cells: tuple, alive: tuple):
        mine = ("function", module, identity, defaults, words, attributes, cells)
        for function in self._finder.functions(identity):
            if self._same(function, mine):
                return function
        name = f"{identity[2].replace('<locals>.', '')}() ({identity[0]}:{identity[1]})"
        if alive:
            raise CannotMove(f"{name}: it reads {alive[0]}, which is running and may change it")
        code, home = self._finder.code(identity), sys.modules.get(module)
        if code is None or home is None:
            raise CannotMove(f"{name}, which its new rank does not have")
        closure = tuple(types.CellType(self.unpack(held)) for _, held in cells)
        made = types.FunctionType(code, vars(home), code.co_name, tuple(map(self.unpack, defaults)) or None, closure)
        made.__kwdefaults__, made.__qualname__ = self._options(words) or None, code.co_qualname
        vars(made).update(self._options(attributes))
        return made

    def _same(self, function: types.FunctionType, wanted: tuple) -> bool:
        """A function that this rank's own script has made, of the same values."""
        try:
            return pack(function, Own(torch.nn.Module()), strict=True)[:-1] == wanted
        except (CannotMove, RuntimeError):  # (tensors have no truth)
            return False
