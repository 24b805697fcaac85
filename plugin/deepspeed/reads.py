# SPDX-License-Identifier: Apache-2.0
"""What forwards read that nothing shows while they run.

    reads_gradients(layer)      # its forward asks some tensor for .grad
    asks_for_rank(layer)        # or for the rank that it runs on

Found in the code: of forward() and of what it calls by the names that its class, or its module of the script, has.
"""

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from .script_state import is_the_scripts

RANKS = frozenset({"get_rank", "get_global_rank", "RANK", "LOCAL_RANK"})  # functions, and variables of the environment


def reads_gradients(layer: Any) -> bool:
    """`layer`: of a PipelineModule."""
    return any(_asks_for_grad(function.__code__) for root in _forwards(layer) for function in _reached(*root))


def asks_for_rank(layer: Any) -> bool:
    return any(RANKS & {*code.co_names, *code.co_consts} for root in _forwards(layer) for f in _reached(*root) for code in _codes(f.__code__))


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
        yield from ((None, f) for f in _functions(call))


def _functions(value: Any) -> list[types.FunctionType]:
    function = getattr(value, "__func__", value)
    return [function] if isinstance(function, types.FunctionType) and is_the_scripts(function.__module__) else []


def _reached(kind: Any, function: types.FunctionType) -> list[types.FunctionType]:
    found, left = [function], [function]
    while left:
        function = left.pop()
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        called = [f for name in names for f in _functions(getattr(kind, name, None) or function.__globals__.get(name))]
        left += (more := [f for f in called if f not in found])
        found += more
    return found


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
