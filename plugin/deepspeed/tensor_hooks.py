# SPDX-License-Identifier: Apache-2.0
"""Whether backwards run hooks of the script's on tensors: those of parameters, and those that a forward registers.

    hooks = TensorHooks()
    hooks.watch()
    made = layer(hidden)           # made.register_hook(...) inside
    hooks.end()
    hooks.seen                     # True

Torch keeps a hook in the graph, where nobody finds it, so it is seen as it is registered.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .layer_state import TENSOR_HOOKS

OTHERS = ("torch.", "deepspeed.", "ostinato.")  # modules whose Python in a backward reads nothing that forwards leave


class TensorHooks:
    """Of one forward after another."""

    def __init__(self) -> None:
        self.seen = False
        self._original: Callable | None = None

    def watch(self) -> None:
        """From here on, until end()."""
        self.end()
        self.seen, self._original = False, (original := torch.Tensor.register_hook)

        def register_hook(tensor: torch.Tensor, hook: Callable) -> Any:
            self.seen = self.seen or may_read(hook)
            return original(tensor, hook)

        setattr(torch.Tensor, "register_hook", register_hook)  # noqa: B010  # a type checker takes no assignment to a method

    def end(self) -> None:
        """Idempotent."""
        if self._original is not None:
            setattr(torch.Tensor, "register_hook", self._original)  # noqa: B010
            self._original = None


def has_hooks(parameters: Iterable[torch.Tensor]) -> bool:
    """That may read what forwards leave."""
    kept = (getattr(p, name, None) or {} for p in parameters for name in TENSOR_HOOKS)
    return any(may_read(hook) for hooks in kept for hook in hooks.values())


def may_read(made: Any) -> bool:
    """A function or class that may look at what forwards leave: any but those of OTHERS."""
    made = getattr(made, "func", made)  # of a functools.partial
    return not (getattr(made, "__module__", None) or "").startswith(OTHERS)
