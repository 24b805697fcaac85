# SPDX-License-Identifier: Apache-2.0
"""What forwards read that nothing shows while they run.

    reads_gradients(layer)      # its forward asks some tensor for .grad
    asks_for_rank(layer)        # or for the rank that it runs on, or the process or the machine
    looks_at_model(loss)        # its forward goes through the layers or parameters of the whole PipelineModule, or of its engine
    held_by(loss)               # ids of modules and parameters that it reaches
    changes_in_place(kind)      # the methods that end with "_", or the attributes it sets, of an autograd.Function's backward

Found in the code: of forward() and of what it calls by the names that its class, or its module of the script, has.
"""

import dis
import functools
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

from .script_state import Search, is_the_scripts

# Functions, variables of the environment, and what an engine says of itself; the process and the machine are others there, too.
RANKS = frozenset({"get_rank", "get_global_rank", "RANK", "LOCAL_RANK", "stage_id", "global_rank", "getpid", "gethostname"})
IN_PLACE = re.compile(r"[a-z]\w*[a-z0-9]_")  # torch's convention
OF_MODULES = ("parameters", "modules", "children", "buffers")
LAYERS = frozenset({*OF_MODULES, *(f"named_{name}" for name in OF_MODULES), "forward_funcs", "get_submodule", "get_parameter", "state_dict", "_modules"})


def reads_gradients(layer: Any) -> bool:
    """`layer`: of a PipelineModule."""
    return any(_asks_for_grad(function.__code__) for root in _forwards(layer) for function in _reached(*root))


def asks_for_rank(layer: Any) -> bool:
    return _names(layer, RANKS)


def looks_at_model(layer: Any) -> bool:
    search = _Models()
    search.layer(layer)
    return search.found and _names(layer, LAYERS)


def held_by(layer: Any) -> set[int]:
    search = _Models()
    search.layer(layer)
    return search.held


def changes_in_place(kind: type[torch.autograd.Function]) -> set[str]:
    """A backward that runs twice does so twice."""
    codes = [c for function in _functions(kind.backward) for reached in _reached(kind, function) for c in _codes(reached.__code__)]
    methods = {name for code in codes for name in code.co_names if IN_PLACE.fullmatch(name)}
    sets = {i.argval for code in codes for i in dis.get_instructions(code) if i.opname in ("STORE_ATTR", "DELETE_ATTR")}
    return methods | sets


class _Models(Search):
    """What a layer uses of modules and parameters, and whether that leads to the model as a whole."""

    def __init__(self) -> None:
        super().__init__({}, None)
        self.found = False
        self.held = set[int]()

    def _into(self, value: Any, words: str) -> None:
        if isinstance(value, torch.nn.Module | torch.nn.Parameter):
            self.held.add(id(value))
        if isinstance(value, torch.nn.Module):
            self.found |= any(hasattr(held, "_layer_specs") for held in (value, getattr(value, "module", None)))
        Search._into(self, value, words)

    def _attribute(self, table: dict, name: str, value: Any, words: str) -> None:
        self.look(value, words)

    def _note(self, key: tuple, place: Any) -> None:
        pass


def _names(layer: Any, wanted: frozenset[str]) -> bool:
    """Some function of its forward uses one of these."""
    found = (code for root in _forwards(layer) for function in _reached(*root) for code in _codes(function.__code__))
    return any(wanted & {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))} for code in found)


def _forwards(layer: Any) -> Iterator[tuple[Any, types.FunctionType]]:
    """With the class whose methods they call; of a function None."""
    if isinstance(layer, functools.partial):
        for part in (layer.func, *layer.args):
            yield from _forwards(part)
    elif isinstance(layer, torch.nn.Module):
        for module in layer.modules():
            forward = module.__dict__.get("forward", getattr(type(module), "forward", None))
            yield from ((type(module), f) for f in _functions(forward))
    else:
        call = layer if isinstance(layer, types.FunctionType | types.MethodType) else type(layer).__call__ if callable(layer) else None
        kind = None if isinstance(layer, types.FunctionType) else type(getattr(layer, "__self__", layer))
        yield from ((kind, f) for f in _functions(call))


def _functions(value: Any) -> list[types.FunctionType]:
    function = value.__func__ if isinstance(value, types.MethodType | staticmethod | classmethod) else value
    return [function] if isinstance(function, types.FunctionType) and is_the_scripts(function.__module__) else []


def _reached(kind: Any, function: types.FunctionType) -> list[types.FunctionType]:
    found, left = [function], [function]
    while left:
        function = left.pop()
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        called = [f for name in names for f in _functions(_named(name, kind, function.__globals__))]
        left += (more := [f for f in called if f not in found])
        found += more
    return found


def _named(name: str, kind: Any, scope: dict[str, Any]) -> Any:
    """What a method of `kind` may mean by `name`. Code of the script's does not run: neither a class property, nor the truth of a tensor."""
    own = inspect.getattr_static(kind, name, None) if kind is not None else None
    return scope.get(name) if own is None else own


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            yield from _codes(held)


def _asks_for_grad(code: types.CodeType) -> bool:
    """Of a tensor: torch.autograd.grad() is none of them."""
    before = None
    for of_code in _codes(code):
        for instruction in dis.get_instructions(of_code):
            if instruction.argval == "grad" and instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and before not in ("autograd", "func"):
                return True
            before = instruction.argval
    return False
