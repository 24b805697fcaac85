# SPDX-License-Identifier: Apache-2.0
"""What a step is given that modules outside the pipeline compute and train with: encoder(x), for example.

    outside, named = Outside(), Outside()
    value = outside.apart(value)      # of one micro-batch: cuts the graph of the stages off here
    named.sum(group, device)          # of keyword arguments: on all ranks, after the step
    outside.backward(named)           # continues with the gradients of all micro-batches at once

The micro-batches share the outer graph, but each backward of a stage frees the graph that it runs through.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from .batches import leaves


class Outside:
    """Of one step."""

    def __init__(self) -> None:
        # The given tensor, and the leaf that the stages take instead.
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def apart(self, value: Any) -> Any:
        """Replaces tensors that have a graph, also within tuples, lists and dictionaries."""
        if torch.is_tensor(value):
            return self._leaf(value) if value.requires_grad else value
        if not isinstance(value, Mapping | tuple | list) or not any(map(_trains, leaves(value))):
            return value  # the same object
        if isinstance(value, Mapping):
            made = {name: self.apart(value[name]) for name in sorted(value, key=repr)}  # as leaves()
            return {name: made[name] for name in value}
        items = [self.apart(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

    def sum(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Over ranks that have all been given the same, and each make a part of its gradients: a module that each has a
        copy of stays the same on all. `device`: from which the group sends."""
        for dtype in dict.fromkeys(leaf.dtype for _, leaf in self._made):
            of_type = [leaf for _, leaf in self._made if leaf.dtype == dtype]
            # None: no stage here uses it.
            parts = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in of_type]
            total = torch.cat([part.to_dense().flatten().to(device) for part in parts])
            dist.all_reduce(total, group=group)
            for leaf, part in zip(of_type, total.split([leaf.numel() for leaf in of_type]), strict=True):
                leaf.grad = part.view(leaf.shape).to(leaf.device)

    def backward(self, beside: "Outside") -> None:
        """Of both at once: what they were given may share a graph."""
        reached = [(given, leaf.grad) for given, leaf in self._made + beside._made if leaf.grad is not None]
        if reached:
            torch.autograd.backward([given for given, _ in reached], [gradient for _, gradient in reached])

    def _leaf(self, given: torch.Tensor) -> torch.Tensor:
        leaf = given.detach().requires_grad_()
        self._made.append((given, leaf))
        return leaf


def shapes_of(value: Any) -> str:
    """Of what trains in it, in words; "" where nothing does."""
    said = [f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves(value) if _trains(leaf)]
    return f" (trained: {', '.join(said)})" if said else ""


def _trains(leaf: Any) -> bool:
    return torch.is_tensor(leaf) and leaf.requires_grad
