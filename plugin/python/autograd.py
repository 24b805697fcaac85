# SPDX-License-Identifier: Apache-2.0
"""Walks over autograd's graph."""

from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

ACCUMULATES = "torch::autograd::AccumulateGrad"


def nodes(values: Iterable[Any]) -> list[Any]:
    """That made the tensors among `values`."""
    return [
        get_gradient_edge(value).node for value in values if torch.is_tensor(value) and value.requires_grad
    ]


def behind(starts: Iterable[Any], but: Set[Any] = frozenset()) -> Iterator[Any]:
    """All nodes that are reached from these, and they themselves, once each; not those in `but`, nor through them."""
    left, seen = list(starts), set()
    while left:
        node = left.pop()
        if node is not None and node not in seen and node not in but:
            seen.add(node)
            left += [following for following, _ in node.next_functions]
            yield node


def reaches(start: Any, ends: set[Any]) -> bool:
    return any(node in ends for node in behind([start]))


def leaves(nodes: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors whose gradients these nodes add up."""
    return [node.variable for node in nodes if node.name() == ACCUMULATES]


def strangers(made: Iterable[Any], given: Iterable[Any], known: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Weights with which the tensors among `made` were computed from those among `given`, and that are not `known`:
    optimizers and sums over ranks go by the parameters of a rank's layers, and would miss their gradients. A tensor
    that a forward makes itself, and lets require a gradient, is no weight. To be called before the backward, and not
    of what fully_shard() has changed, which computes with weights that it makes."""
    own = behind(nodes(made), but=set(behind(nodes(given))))
    ids = {id(parameter) for parameter in known}
    return [leaf for leaf in leaves(own) if isinstance(leaf, nn.Parameter) and id(leaf) not in ids]
