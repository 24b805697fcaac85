# SPDX-License-Identifier: Apache-2.0
"""Hooks on tensors that backwards run: those of parameters, and those that a forward registers.

    hooks = TensorHooks()
    hooks.watch()
    made = layer(hidden)           # made.register_hook(hook) inside
    hooks.end()                    # [hook]

Torch keeps a hook in the graph, where nobody finds it, so it is noted as it is registered. Those of libraries are left out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .layer_state import TENSOR_HOOKS

OTHERS = ("torch.", "deepspeed.", "ostinato.")  # modules whose Python in a backward reads nothing that forwards leave


class TensorHooks:
    """Of one forward after another."""

    def __init__(self) -> None:
        self._registered: list[Callable] = []
        self._original: Callable | None = None

    def watch(self) -> None:
        """From here on, until end()."""
        self.end()
        self._original = original = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Callable) -> Any:
            self._registered.append(hook)
            return original(tensor, hook)

        setattr(torch.Tensor, "register_hook", register_hook)  # noqa: B010  # a type checker takes no assignment to a method

    def end(self) -> list[Callable]:
        """Those that have been registered since watch(), once."""
        if self._original is not None:
            setattr(torch.Tensor, "register_hook", self._original)  # noqa: B010
            self._original = None
        registered, self._registered = self._registered, []
        return list(filter(may_read, registered))


def hooks_of(parameters: Iterable[torch.Tensor]) -> list[Callable]:
    kept = (getattr(p, name, None) or {} for p in parameters for name in TENSOR_HOOKS)
    return [hook for hooks in kept for hook in hooks.values() if may_read(hook)]


def may_read(made: Any) -> bool:
    """A function or class that may look at what forwards leave: any but those of OTHERS."""
    made = getattr(made, "func", made)  # of a functools.partial
    return not (getattr(made, "__module__", None) or "").startswith(OTHERS)
