"""A backward in two halves: gradients of the inputs first, of the parameters later (Zero Bubble Pipeline Parallelism,
Qi et al., arXiv 2401.10241), with public functions of torch.autograd only.

The graph's nodes that lead to an input form the input half. A node of it from which a branch leads to parameters and to
no input is a root: the input half notes the gradients that arrive there, and the weight half starts from them. A
parameter whose gradient starts at several roots (it is used twice, one behind the other) cannot be split so: from the
later root the weight half would run through the input half to the earlier one, and count it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node


@dataclass
class Group:
    """Parameters whose gradients start at the same root."""

    edges: list[GradientEdge]
    parameters: list[torch.Tensor]


@dataclass
class Graph:
    nodes: list[Node]  # every node after those that use its result: a backward runs them in this order
    arriving: dict[Node, set[int]]  # numbers of a node's results whose gradients can arrive

    @classmethod
    def behind(cls, outputs: Sequence[torch.Tensor]) -> Graph:
        arriving: dict[Node, set[int]] = {}
        finished: list[Node] = []
        for output in outputs:
            edge = torch.autograd.graph.get_gradient_edge(output)
            stack = [] if edge.node in arriving else [(edge.node, iter(edge.node.next_functions))]
            arriving.setdefault(edge.node, set()).add(edge.output_nr)
            while stack:
                node, rest = stack[-1]
                found = next(((n, number) for n, number in rest if n is not None), None)
                if found is None:
                    finished.append(stack.pop()[0])
                    continue
                if found[0] not in arriving:
                    stack.append((found[0], iter(found[0].next_functions)))
                arriving.setdefault(found[0], set()).add(found[1])
        return cls(finished[::-1], arriving)

    def leading_to(self, tensors: Sequence[torch.Tensor]) -> set[Node]:
        """Nodes from which the gradient of one of these leaves is reached."""
        ends = {torch.autograd.graph.get_gradient_edge(tensor).node for tensor in tensors}
        leading: set[Node] = set()
        for node in reversed(self.nodes):
            if node in ends or any(n in leading for n, _ in node.next_functions):
                leading.add(node)
        return leading


def roots_of(graph: Graph, outputs: Sequence[torch.Tensor], to_inputs: set[Node]) -> dict[Node, set[Node]]:
    """Of each node outside the input half: where its branches leave it, or start if they were never in it."""
    starts = {torch.autograd.graph.get_gradient_edge(output).node for output in outputs}
    roots: dict[Node, set[Node]] = {node: {node} for node in graph.nodes if node in starts and node not in to_inputs}
    for node in graph.nodes:
        own = {node} if node in to_inputs else roots[node]
        for child, _ in node.next_functions:
            if child is not None and child not in to_inputs:
                roots.setdefault(child, set()).update(own)
    return roots


def parameter_groups(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> list[Group] | None:
    """Parameters that `outputs` depend on, by the root of their gradients. None: this backward cannot be split."""
    graph = Graph.behind(outputs)
    roots = roots_of(graph, outputs, graph.leading_to(inputs))
    groups: dict[Node, Group] = {}
    for parameter in parameters:
        found = roots.get(torch.autograd.graph.get_gradient_edge(parameter).node, set())
        if len(found) > 1:
            return None
        for root in found:
            edges = [GradientEdge(root, number) for number in sorted(graph.arriving[root])]
            groups.setdefault(root, Group(edges, [])).parameters.append(parameter)
    return list(groups.values())


def input_half(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    groups: list[Group],
) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """Gradients of the inputs, and for each group those that arrive at its edges."""
    edges = [edge for group in groups for edge in group.edges]
    results = torch.autograd.grad(outputs, [*inputs, *edges], gradients, retain_graph=True, allow_unused=True)
    rest, arrived = iter(results[len(inputs) :]), []
    for group in groups:
        arrived.append([next(rest) for _ in group.edges])
    return results[: len(inputs)], arrived


def weight_half(groups: list[Group], arrived: list[list[Any]]) -> None:
    """Adds to the `.grad` of the parameters."""
    for group, gradients in zip(groups, arrived, strict=True):
        pairs = [(edge, g) for edge, g in zip(group.edges, gradients, strict=True) if g is not None]
        edges, given = [edge for edge, _ in pairs], [g for _, g in pairs]
        results = torch.autograd.grad(edges, group.parameters, given, retain_graph=True, allow_unused=True)
        for parameter, gradient in zip(group.parameters, results, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
