# SPDX-License-Identifier: Apache-2.0
"""Walks over autograd's graph."""

from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

ACCUMULATES = "torch::autograd::AccumulateGrad"


def nodes(values: Iterable) -> list:
    """That made the tensors among `values`."""
    return [
        get_gradient_edge(value).node for value in values if torch.is_tensor(value) and value.requires_grad
    ]


def behind(starts: Iterable, but: Set = frozenset()) -> Iterator:
    """All nodes that are reached from these, and they themselves, once each; not those in `but`, nor through them."""
    left, seen = list(starts), set()
    while left:
        node = left.pop()
        if node is not None and node not in seen and node not in but:
            seen.add(node)
            left += [following for following, _ in node.next_functions]
            yield node


def reaches(start: Any, ends: set) -> bool:
    return any(node in ends for node in behind([start]))


def leaves(nodes: Iterable) -> list[torch.Tensor]:
    """Tensors whose gradients these nodes add up."""
    return [node.variable for node in nodes if node.name() == ACCUMULATES]
