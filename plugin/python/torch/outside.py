# SPDX-License-Identifier: Apache-2.0
"""What modules outside the pipeline computed, and train with: encoder(x) as the input of a step, or its
target.

    outside = Outside()
    value = outside.apart(value)      # of one micro-batch: the graph of the stages ends here
    outside.backward()                # after the step: the gradients of all micro-batches go on at once

The micro-batches share that graph, and each backward of a stage frees the graph that it runs through.
"""

from collections.abc import Mapping
from typing import Any

import torch


class Outside:
    """Of one step."""

    def __init__(self):
        self._made: list[
            tuple[torch.Tensor, torch.Tensor]
        ] = []  # as it was given, and what the stages take instead

    def apart(self, value: Any) -> Any:
        """In tensors, and tuples, lists and dictionaries of them."""
        if torch.is_tensor(value):
            return self._leaf(value) if value.requires_grad else value
        if isinstance(value, Mapping):
            return {name: self.apart(item) for name, item in value.items()} if self._is_made(value) else value
        if isinstance(value, tuple | list) and self._is_made(value):
            items = [self.apart(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def backward(self) -> None:
        reached = [(given, leaf.grad) for given, leaf in self._made if leaf.grad is not None]
        self._made = []
        if reached:
            torch.autograd.backward([given for given, _ in reached], [gradient for _, gradient in reached])

    def _leaf(self, given: torch.Tensor) -> torch.Tensor:
        leaf = given.detach().requires_grad_()
        self._made.append((given, leaf))
        return leaf

    def _is_made(self, value: Any) -> bool:
        """Whether any of it is; all else stays the object that it is."""
        if torch.is_tensor(value):
            return value.requires_grad
        items = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
        )
        return any(self._is_made(item) for item in items)
