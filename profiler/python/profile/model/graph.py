# SPDX-License-Identifier: Apache-2.0
"""Any nn.Module as a graph of operators, with its branches, from torch.export.

One row an operator, in the order in which the module calls them; views and tuple elements belong to the
operator whose memory they show. Parameters and buffers stay with the operators that read them. With a loss
function, the loss is part of the graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ostinato.errors import put
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.faithful import check_faithful
from ostinato.profile.model.identity import shape_key, value_key
from ostinato.profile.model.inline import Flat, Mode, modes_of, switched
from ostinato.profile.model.job import Job
from ostinato.profile.model.model_digest import layer_parameters, model_digest
from ostinato.profile.model.steps import GraphStep, StepBuilder
from ostinato.profile.model.tensors import moved
from ostinato.profile.model.wanted import find_wanted
from ostinato.profile.settings import Settings

STATE = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


class WithLoss(nn.Module):
    """The module to export if the job has a loss."""

    def __init__(self, module: nn.Module, loss_fn: Callable):
        super().__init__()
        self.module, self.loss_fn = module, loss_fn

    def forward(self, labels: Any, *inputs: Any, **named: Any) -> Any:
        return self.loss_fn(self.module(*inputs, **named), labels)


class UnderAutocast(nn.Module):
    """The module to export if DeepSpeed's engine calls it under autocast."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype):
        super().__init__()
        self.module, self.device, self.dtype = module, device, dtype

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with torch.autocast(self.device, self.dtype):
            return self.module(*inputs, **named)


@dataclass
class Group:
    """One operator and the views of its results."""

    nodes: list[Node] = field(default_factory=list)
    # Values of earlier groups and of the model's inputs, once each.
    takes: list[Node] = field(default_factory=list)
    state: list[Node] = field(default_factory=list)  # parameters and buffers
    gives: list[Node] = field(default_factory=list)  # values that later groups or the model's caller read
    # The nodes, by what they run under.
    runs: list[tuple[tuple[Mode, ...], list[Node]]] = field(default_factory=list)


@dataclass
class Exported:
    groups: list[Group]
    state: dict[Node, torch.Tensor]
    inputs: list[Node]


def is_view(node: Node) -> bool:
    """Whether its result is memory that it was given, unchanged."""
    if node.target is operator.getitem:
        return True
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def grouped(calls: Sequence[Node], state: dict[Node, torch.Tensor]) -> list[Group]:
    groups: list[Group] = []
    home: dict[Node, Group] = {}
    for node in calls:
        sources = [home[source] for source in node.all_input_nodes if source in home]
        if is_view(node) and len(sources) == 1:
            group = sources[0]
        else:
            group = Group()
            groups.append(group)
        group.nodes.append(node)
        home[node] = group
    for group in groups:
        read = dict.fromkeys(source for node in group.nodes for source in node.all_input_nodes)
        group.state = [node for node in read if node in state]
        group.takes = [node for node in read if node not in state and home.get(node) is not group]
        group.runs = [(modes, list(nodes)) for modes, nodes in groupby(group.nodes, modes_of)]
        group.gives = [
            node for node in group.nodes if any(home.get(user) is not group for user in node.users)
        ]
    return groups


def lifted_state(exported: Any, flat: Flat) -> dict[Node, torch.Tensor]:
    """Placeholders of parameters, buffers and constants, with their tensors."""
    named = {**exported.state_dict, **exported.constants}
    wanted = {
        spec.arg.name: spec.target for spec in exported.graph_signature.input_specs if spec.kind in STATE
    }
    lifted = {place: named[wanted[node.name]] for node, place in flat.places.items() if node.name in wanted}
    return lifted | flat.constants


def export(module: nn.Module, inputs: tuple, named: dict[str, Any], name: str) -> Exported:
    try:
        exported = torch.export.export(module, inputs, named, strict=False)
    except Exception as error:
        check_faithful(module, inputs, named, name)  # which may know better why
        why = str(error).partition("\n")[0]
        raise ProfileError(
            f"{name} cannot be exported as a graph ({type(error).__name__}: {why}): give its layers as a list, or as a "
            "PipelineModule, to have it profiled layer by layer"
        ) from error
    flat = Flat(exported.graph_module)
    state = lifted_state(exported, flat)
    calls = [node for node in flat.graph.nodes if node.op == "call_function"]
    return Exported(
        grouped(calls, state), state, [place for place in flat.places.values() if place not in state]
    )


def run_group(group: Group, state: dict[Node, torch.Tensor], values: Sequence[Any]) -> tuple:
    """The results that other nodes read."""
    known = dict(zip(group.takes, values, strict=True))

    def value(node: Node) -> Any:
        return state[node] if node in state else known[node]

    for modes, nodes in group.runs:
        with switched(modes):
            for node in nodes:
                run: Any = node.target
                known[node] = run(*map_arg(node.args, value), **map_arg(node.kwargs, value))
    return tuple(known[node] for node in group.gives)


def group_key(group: Group, state: dict[Node, torch.Tensor]) -> Any:
    """Equal for groups that do the same on inputs of the same shapes."""
    numbers = {node: number for number, node in enumerate([*group.takes, *group.state, *group.nodes])}

    def calls(node: Node) -> Any:
        return (
            str(node.target),
            modes_of(node),
            value_key(map_arg((node.args, node.kwargs), lambda n: f"%{numbers[n]}")),
        )

    gives = tuple(numbers[node] for node in group.gives)
    return tuple(map(calls, group.nodes)), gives, tuple(shape_key(state[node]) for node in group.state)


def group_name(group: Group) -> str:
    """`"encoder.0.linear1 linear"`: the place in the module, and the operator."""
    first = group.nodes[0]
    places = [place for place, _ in first.meta.get("nn_module_stack", {}).values()]
    place = (places[-1] if places else "").removeprefix("module.").removeprefix("module")
    what = getattr(getattr(first.target, "_schema", None), "name", str(first.target)).rpartition("::")[2]
    return f"{place} {what}".strip()


def step_of(group: Group, state: dict[Node, torch.Tensor]) -> GraphStep:
    return GraphStep(
        name=group_name(group),
        key=group_key(group, state),
        run=lambda values: run_group(group, state, values),
        takes=group.takes,
        state=[state[node] for node in group.state],
        gives=lambda outputs: zip(group.gives, outputs, strict=True),
    )


def arguments(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    """A job's inputs as the arguments of a call: a tuple or list is several; of a dict, those under whole
    numbers come first, and the rest are named."""
    if isinstance(inputs, dict):
        places = [key for key in inputs if isinstance(key, int)]
        return tuple(inputs[key] for key in places), {
            key: value for key, value in inputs.items() if key not in places
        }
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def without_cache(module: nn.Module, inputs: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """The named arguments of a call that returns no cache of keys and values, where the configuration of transformers'
    model asks for one and the call does not: torch.export does not know its type."""
    config: Any = getattr(module, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if not getattr(config, "use_cache", False):
        return named
    takes = list(inspect.signature(module.forward).parameters)
    generates: Any = getattr(module, "can_generate", lambda: False)  # peft's wrappers pass it on
    if "use_cache" in [*named, *takes[: len(inputs)]] or not ("use_cache" in takes or generates()):
        return named
    put(
        "ostinato: the graph is that of a call with use_cache=False: give this in the script, too, as training does not read "
        "the cache",
        error=True,
    )
    return named | {"use_cache": False}


def build_groups(exported: Exported, trainable: set[int], device: Any, inputs: Sequence[Any]) -> Chain:
    """A row of each group."""
    builder = StepBuilder(trainable, device, dict(zip(exported.inputs, inputs, strict=True)))
    last_use: dict[Hashable, int] = {
        node: index for index, group in enumerate(exported.groups) for node in group.takes
    }
    for index, group in enumerate(exported.groups):
        builder.add(step_of(group, exported.state))
        builder.forget([node for node in builder.values if last_use.get(node, -1) <= index])
    return builder.chain


def build_graph(job: Job, settings: Settings) -> Chain:
    """Rows of the job's module. Raises ProfileError where torch.export does not understand it."""
    module, (inputs, named) = job.module, arguments(moved(job.inputs, job.device))
    assert module is not None
    module.to(device=job.device.place, dtype=settings.dtype)
    named = without_cache(module, inputs, named)
    whole: nn.Module = module
    if job.autocast is not None:
        whole = UnderAutocast(module, job.device.place.type, job.autocast)
    if job.loss_fn is not None:
        whole, inputs = WithLoss(whole, job.loss_fn), (moved(job.labels, job.device), *inputs)
    exported = export(whole, inputs, named, job.name)
    check_faithful(whole, inputs, named, job.name)
    if not exported.groups:
        raise ProfileError("the module runs no operators")
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    chain = build_groups(exported, trainable, job.device, tree_leaves((inputs, named)))
    chain.digest = model_digest([(job.name, layer_parameters(module))])
    find_wanted(chain)
    return chain
