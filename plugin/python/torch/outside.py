# SPDX-License-Identifier: Apache-2.0
"""What a step is given that modules outside the pipeline compute and train with: encoder(x), for example.

    outside = Outside()
    value = outside.apart(value)      # of one micro-batch: cuts the graph of the stages off here
    outside.backward()                # after the step: continues with the gradients of all micro-batches at once

The micro-batches share the outer graph, but each backward of a stage frees the graph that it runs through.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


class Outside:
    """Of one step. `group`: of ranks that have all been given it, each of which makes a part of its gradients, as with
    keyword arguments; they are summed, so that a module that each rank has a copy of stays the same on all."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = group
        # The given tensor, and the leaf that the stages take instead.
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def apart(self, value: Any) -> Any:
        """Replaces tensors that have a graph, also within tuples, lists and dictionaries."""
        if torch.is_tensor(value):
            return self._leaf(value) if value.requires_grad else value
        if isinstance(value, Mapping):
            return {name: self.apart(item) for name, item in value.items()} if self.is_made(value) else value
        if isinstance(value, tuple | list) and self.is_made(value):
            items = [self.apart(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def backward(self) -> None:
        for _, leaf in self._made if self._group is not None else ():
            part = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad  # None: no stage here uses it
            leaf.grad = part.to_dense().contiguous()
            dist.all_reduce(leaf.grad, group=self._group)
        reached = [(given, leaf.grad) for given, leaf in self._made if leaf.grad is not None]
        self._made = []
        if reached:
            torch.autograd.backward([given for given, _ in reached], [gradient for _, gradient in reached])

    def _leaf(self, given: torch.Tensor) -> torch.Tensor:
        leaf = given.detach().requires_grad_()
        self._made.append((given, leaf))
        return leaf

    @classmethod
    def is_made(cls, value: Any) -> bool:
        """Whether anything in it has a graph; anything else stays the same object."""
        if torch.is_tensor(value):
            return value.requires_grad
        items = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
        )
        return any(cls.is_made(item) for item in items)
