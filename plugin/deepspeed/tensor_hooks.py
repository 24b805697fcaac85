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
            self.seen = self.seen or is_the_scripts(hook)
            return original(tensor, hook)

        setattr(torch.Tensor, "register_hook", register_hook)  # noqa: B010  # a type checker takes no assignment to a method

    def end(self) -> None:
        """Idempotent."""
        if self._original is not None:
            setattr(torch.Tensor, "register_hook", self._original)  # noqa: B010
            self._original = None


def has_hooks(parameters: Iterable[torch.Tensor]) -> bool:
    """Of the script's."""
    kept = (getattr(p, name, None) or {} for p in parameters for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return any(is_the_scripts(hook) for hooks in kept for hook in hooks.values())


def is_the_scripts(made: Any) -> bool:
    """A function or class that is no library's."""
    made = getattr(made, "func", made)  # of a functools.partial
    return not (getattr(made, "__module__", None) or "").startswith(OTHERS)
