# SPDX-License-Identifier: Apache-2.0
"""What torch.export leaves out of a graph without a word: seen in a run of the module itself, and refused by
name.

It writes down the operators of a forward. What else decides about the backward (a torch.autograd.Function,
checkpoints and other hooks on saved tensors, inference mode, what a compiler made of a part) is not in them,
and the rows would be another model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ostinato.profile.errors import ProfileError
from ostinato.profile.model.tensors import tensors

ADVICE = "give the model's layers as a list, or as a PipelineModule, to have it profiled layer by layer"
CHECKPOINTS = {"_checkpoint_hook": "activation checkpointing", "save_on_cpu": "save_on_cpu()"}


@contextmanager
def noted(kind: Any, note: Callable[[Any], None]) -> Iterator[None]:
    """While it lasts, each `with` block of this kind is told."""
    enter = kind.__enter__

    def entered(self: Any) -> Any:
        note(self)
        return enter(self)

    kind.__enter__ = entered
    try:
        yield
    finally:
        kind.__enter__ = enter


class Watched:
    """Runs a module once, and lists what torch.export would silently omit."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.found: list[str] = []
        self.names = {id(part): name for name, part in module.named_modules()}
        self.inside: list[str] = []

    def note(self, what: str) -> None:
        place = next((name for name in reversed(self.inside) if name), "")
        self.found.append(
            f'"{place.removeprefix("module.")}" uses {what}' if place else f"the module uses {what}"
        )

    def enter(self, part: nn.Module, _inputs: Any) -> None:
        self.inside.append(self.names.get(id(part), ""))

    def leave(self, *_call: Any) -> None:
        self.inside.pop()

    def run(self, inputs: tuple, named: dict[str, Any]) -> Any:
        hooks = register_module_forward_pre_hook(self.enter), register_module_forward_hook(self.leave)
        try:
            with (
                torch.enable_grad(),
                noted(
                    saved_tensors_hooks,
                    lambda hook: self.note(CHECKPOINTS.get(type(hook).__name__, "hooks on saved tensors")),
                ),
                noted(
                    torch.inference_mode,
                    lambda _: self.note("torch.inference_mode() (torch.no_grad() is understood)"),
                ),
            ):
                return self.module(*inputs, **named)
        finally:
            for hook in hooks:
                hook.remove()


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def functions_behind(outputs: Any) -> set[str]:
    """Names of the torch.autograd.Functions in the graph of a backward."""
    stack = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
    seen = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return {node.name() for node in seen if isinstance(node, BackwardCFunction)}


def check_faithful(module: nn.Module, inputs: tuple, named: dict[str, Any], name: str) -> None:
    """Raises ProfileError where the module's graph of operators would not be the module."""
    for place, part in module.named_modules():
        if type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None:
            raise ProfileError(
                f'"{place.removeprefix("module.")}" of {name} is compiled, which hides its operators from the graph: {ADVICE}'
            )
    watched = Watched(module)
    try:
        outputs = watched.run(inputs, named)
    except Exception as error:
        raise ProfileError(
            f"{name} raised {type(error).__name__} in its forward: {first_line(error)}"
        ) from error
    found = [
        *watched.found,
        *(
            f"the backward runs {function}, a torch.autograd.Function"
            for function in sorted(functions_behind(outputs))
        ),
    ]
    if found:
        raise ProfileError(
            f"{name}: {found[0]}, which torch.export omits from a graph of operators: {ADVICE}"
        )
