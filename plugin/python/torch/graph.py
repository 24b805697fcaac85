# SPDX-License-Identifier: Apache-2.0
"""Walks over autograd's graph."""

from collections.abc import Iterable, Set
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

ACCUMULATES = "torch::autograd::AccumulateGrad"


def nodes(values: Iterable) -> list:
    """That made the tensors among `values`."""
    return [
        get_gradient_edge(value).node for value in values if torch.is_tensor(value) and value.requires_grad
    ]


def reaches(start: Any, ends: set) -> bool:
    left, seen = [start], set()
    while left:
        node = left.pop()
        if node in ends:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            left += [behind for behind, _ in node.next_functions]
    return False


def behind(starts: Iterable, but: Set = frozenset()) -> set:
    """All nodes that are reached from these, and they themselves, without those in `but`."""
    left, seen = list(starts), set()
    while left:
        node = left.pop()
        if node is not None and node not in seen and node not in but:
            seen.add(node)
            left += [next_node for next_node, _ in node.next_functions]
    return seen


def leaves(nodes: Iterable) -> list[torch.Tensor]:
    """Tensors whose gradients these nodes add up."""
    return [node.variable for node in nodes if node.name() == ACCUMULATES]
