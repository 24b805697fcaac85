# SPDX-License-Identifier: Apache-2.0
"""An exported graph without the calls that torch.export makes of `with` blocks.

torch.export turns code under torch.no_grad(), torch.enable_grad() or torch.autocast into a call of a separate
graph. `Flat` puts the operators of such graphs in the caller's place; each remembers the modes that it runs
under. Other calls of graphs (torch.cond and its like) are refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ostinato.profile.errors import ProfileError

ASSERTIONS = ("aten::_assert", "aten::sym_constrain_range")  # that torch.export adds
MODES = "ostinato_modes"  # in a node's meta: what it runs under, outermost first
Mode = tuple[str, tuple]  # "grad" or "autocast", and its arguments

REFUSED = {
    "cond": "torch.cond, which runs only one of its branches",
    "while_loop": "a while_loop, whose number of runs depends on values",
    "flex_attention": "flex_attention, whose backward is not in the graph",
    "tag_activation_checkpoint": "activation checkpointing, which runs the forward twice",
    "autograd_function_apply": "a torch.autograd.Function, whose backward is not in the graph",
}


def place_of(node: Node) -> str:
    """Where in the model the node is, for a message."""
    places = [place for place, _ in node.meta.get("nn_module_stack", {}).values()]
    return f'"{places[-1]}"' if places and places[-1] else "the module itself"


def refusal(node: Node, what: str) -> ProfileError:
    return ProfileError(
        f"{place_of(node)} uses {what}, which has no row in a graph of operators: give the model's layers as a list, or as a "
        "PipelineModule, to have it profiled layer by layer"
    )


def is_assertion(node: Node) -> bool:
    return getattr(getattr(node.target, "_schema", None), "name", "").startswith(ASSERTIONS)


def called(node: Node, arguments: Sequence[Any]) -> tuple[tuple[Mode, ...], GraphModule, Sequence[Any]]:
    """What the call of a graph switches on, the graph, and its arguments."""
    target: Any = node.target
    name = target.name()
    if name == "wrap_with_set_grad_enabled":
        return (("grad", tuple(arguments[:1])),), arguments[1], arguments[2:]
    if name == "wrap_with_autocast":
        return (("autocast", tuple(arguments[:4])),), arguments[4], arguments[5:]
    if name == "invoke_subgraph":
        return (), arguments[0], arguments[2:]
    raise refusal(node, REFUSED.get(name, f"the higher-order operator {name}"))


class Flat:
    """`graph` has only placeholders and operators; `places` of the exported graph's placeholders in it;
    `constants`, by placeholder, that the exported graph reads by name."""

    def __init__(self, root: GraphModule):
        self.graph = Graph()
        self.constants: dict[Node, Any] = {}
        self.places = {node: self._placeholder(node) for node in root.graph.nodes if node.op == "placeholder"}
        self.graph.output(self._copy(root, dict(self.places), ()))

    def _placeholder(self, node: Node) -> Node:
        place = self.graph.placeholder(node.name)
        place.meta = dict(node.meta)
        return place

    def _copy(self, module: GraphModule, known: dict[Node, Any], modes: tuple[Mode, ...]) -> Any:
        """The results of the module's graph, as nodes of the flat one."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                known[node] = self._attribute(module, node)
            elif node.op == "call_function" and not is_assertion(node):
                known[node] = self._call(node, known, modes)
            elif node.op == "output":
                return map_arg(node.args[0], known.__getitem__)
        return ()

    def _attribute(self, module: GraphModule, node: Node) -> Any:
        value = operator.attrgetter(str(node.target))(module)
        if not isinstance(value, torch.Tensor):
            return value  # a graph that a later node calls
        place = self._placeholder(node)
        self.constants[place] = value
        return place

    def _call(self, node: Node, known: dict[Node, Any], modes: tuple[Mode, ...]) -> Any:
        if isinstance(node.target, HigherOrderOperator):
            switched, body, given = called(node, map_arg(node.args, known.__getitem__))
            places = (inner for inner in body.graph.nodes if inner.op == "placeholder")
            return self._copy(body, dict(zip(places, given, strict=True)), (*modes, *switched))
        if node.target is operator.getitem:
            whole, place = cast(tuple[Node, Any], node.args)
            if not isinstance(known[whole], Node):
                return known[whole][place]  # of what a graph gave
        copy = self.graph.node_copy(node, known.__getitem__)
        copy.meta[MODES] = modes
        return copy


def modes_of(node: Node) -> tuple[Mode, ...]:
    return node.meta.get(MODES, ())


@contextmanager
def switched(modes: Sequence[Mode]) -> Iterator[None]:
    """The modes under which the operators of a `with` block ran."""
    with ExitStack() as stack:
        for kind, arguments in modes:
            if kind == "grad":
                stack.enter_context(torch.set_grad_enabled(*arguments))
            else:
                device, dtype, enabled, cache = arguments
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
        yield
