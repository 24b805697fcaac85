# SPDX-License-Identifier: Apache-2.0
"""Hooks on tensors that backwards run: those of parameters, those that a forward registers, and those on what a graph saves, with which
torch.utils.checkpoint runs a part of the layer again.

    hooks = TensorHooks(lambda: 3)  # the layer that runs
    hooks.watch()
    made = layer(hidden)           # made.register_hook(hook) inside
    hooks.reruns                   # where checkpoints are: what `place` gave there
    hooks.end()                    # [hook]

Torch keeps a hook in the graph, where nobody finds it, so it is noted as it is registered. Those of libraries are left out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from .layer_state import TENSOR_HOOKS

OTHERS = ("torch.", "deepspeed.", "ostinato.")  # modules whose Python in a backward reads nothing that forwards leave
CHECKPOINT = "torch.utils.checkpoint"  # but this one's, which runs the layer's


class TensorHooks:
    """Of one forward after another."""

    def __init__(self, place: Callable[[], int]) -> None:
        """`place`: the layer that runs."""
        self._place, self.reruns = place, set[int]()
        self._registered: list[Callable] = []
        self._originals: tuple[Callable, Callable] | None = None

    def watch(self) -> None:
        """From here on, until end()."""
        self.end()
        self.reruns = set()
        self._originals = on_tensor, on_saved = torch.Tensor.register_hook, saved_tensors_hooks.__init__

        def register_hook(tensor: torch.Tensor, hook: Callable) -> Any:
            self._registered.append(hook)
            return on_tensor(tensor, hook)

        def made(hooks: saved_tensors_hooks, pack: Callable, unpack: Callable) -> None:
            self._registered.append(unpack)
            if getattr(unpack, "__module__", None) == CHECKPOINT:
                self.reruns.add(self._place())
            on_saved(hooks, pack, unpack)

        _set(register_hook, made)

    def end(self) -> list[Callable]:
        """Those that have been registered since watch(), once."""
        if self._originals is not None:
            _set(*self._originals)
            self._originals = None
        registered, self._registered = self._registered, []
        return list(filter(may_read, registered))


def _set(on_tensor: Callable, on_saved: Callable) -> None:
    setattr(torch.Tensor, "register_hook", on_tensor)  # noqa: B010  # a type checker takes no assignment to a method
    setattr(saved_tensors_hooks, "__init__", on_saved)  # noqa: B010


def hooks_of(parameters: Iterable[torch.Tensor]) -> list[Callable]:
    kept = (getattr(p, name, None) or {} for p in parameters for name in TENSOR_HOOKS)
    return [hook for hooks in kept for hook in hooks.values() if may_read(hook)]


def may_read(made: Any) -> bool:
    """A function or class that may look at what forwards leave: any but those of OTHERS."""
    made = getattr(made, "func", made)  # of a functools.partial
    return not (getattr(made, "__module__", None) or "").startswith(OTHERS)
