# SPDX-License-Identifier: Apache-2.0
"""A TorchScript program as steps: each call of a submodule, and each operator beside them, with what they
read of each other.

    chain = build_program(Job(module=torch.jit.load("model.pt"), inputs=batch), settings)

A module that does nothing but call one other is looked into, until something calls several; Job.depth says
how many levels instead. What computes sizes or puts tensors into lists and tuples runs once, while the steps
are found, and is part of none: the shapes are the inputs'. Operators run as they are written: nothing is
fused or recompiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import counted
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.identity import shape_key
from ostinato.profile.model.job import Job
from ostinato.profile.model.model_digest import layer_parameters, model_digest
from ostinato.profile.model.steps import GraphStep, StepBuilder, in_short
from ostinato.profile.model.tensors import map_tensors, moved, tensors
from ostinato.profile.model.wanted import find_wanted
from ostinato.profile.settings import Settings

FORWARD = "forward"
CONSTANT = "prim::Constant"
ATTRIBUTE = "prim::GetAttr"
METHOD = "prim::CallMethod"
FUNCTION = "prim::CallFunction"


def extended(values: list, more: list) -> list:
    """`more` is added in place."""
    values += more
    return values


# What is done to lists and dictionaries themselves, which the values of a program share.
CONTAINERS = ("ListType", "DictType")
EDITS: dict[str, Callable] = {
    "aten::__getitem__": operator.getitem,
    "aten::_set_item": operator.setitem,
    "aten::append": lambda values, value: extended(values, [value]),
    "aten::extend": extended,
    "aten::insert": list.insert,
}


def edit_of(node: Any) -> Callable | None:
    """Of a node that reads or changes a container; None: it does not. Raises ProfileError for other changes
    than those above."""
    first = next(node.inputs(), None)
    if first is None or first.type().kind() not in CONTAINERS:
        return None
    if node.kind() not in EDITS and "(a!)" in node.schema():
        raise ProfileError(
            f"the program changes a list or dictionary with {node.kind()}: move that into a submodule, which is measured as a whole"
        )
    return EDITS.get(node.kind())


def computes(node: Any) -> bool:
    """Whether it is a call of a submodule or function, or an operator that gives tensors."""
    if node.kind() in (METHOD, FUNCTION):
        return True
    kinds = (torch._C.TensorType.get(), torch._C.ListType.ofTensors())
    return (
        edit_of(node) is None
        and not node.kind().startswith("prim::")
        and any(value.type().isSubtypeOf(kind) for value in node.outputs() for kind in kinds)
    )


def branching(graph: Any) -> str:
    """The first node that branches on values, or ""."""
    return next((node.kind() for node in graph.nodes() if any(True for _ in node.blocks())), "")


def taken_by(node: Any) -> list[Any]:
    """Its inputs that are no constants."""
    return [value for value in node.inputs() if value.node().kind() != CONSTANT]


def value_of(value: Any, known: dict[int, Any]) -> Any:
    return value.toIValue() if value.node().kind() == CONSTANT else known[value.unique()]


def function_of(node: Any) -> Callable:
    """A single node; takes what taken_by() names."""
    graph: Any = torch._C.Graph()
    places: dict[int, Any] = {}

    def place(value: Any) -> Any:
        if value.unique() not in places:
            if value.node().kind() == CONSTANT:
                places[value.unique()] = graph.insertNode(graph.createClone(value.node(), place)).output()
            else:
                places[value.unique()] = graph.addInput()
                places[value.unique()].setType(value.type())
        return places[value.unique()]

    for value in node.inputs():
        place(value)
    made = graph.insertNode(graph.createClone(node, place))
    if made.outputsSize() != 1:  # a function gives one value
        kinds = [value.type() for value in made.outputs()]
        made = graph.insertNode(graph.create("prim::TupleConstruct", list(made.outputs()), 1))
        made.output().setType(torch._C.TupleType(kinds))
    graph.registerOutput(made.output())
    return torch._C._create_function_from_graph("step", graph)


def place_of(value: Any) -> str:
    """Where in its parent a module is: "layers.0"."""
    node = value.node()
    if node.kind() != ATTRIBUTE:
        return "self"
    outer = place_of(node.input())
    return node.s("name") if outer == "self" else f"{outer}.{node.s('name')}"


def module_key(module: Any, method: str) -> Any:
    """Equal for modules of one class whose tensors have the same shapes, and whose other attributes, as far
    as their code reads them, the same values."""
    return method, tuple(own_key(part) for part in module.modules())


def own_key(module: Any) -> Any:
    methods = [module._c._get_method(name).graph for name in sorted(module._c._method_names())]
    names = sorted(
        {
            node.s("name")
            for graph in methods
            for node in graph.findAllNodes(ATTRIBUTE)
            if module._c.hasattr(node.s("name"))
        }
    )
    read = [(name, getattr(module, name)) for name in names]
    plain = tuple((name, shape_key(value)) for name, value in read if not isinstance(value, torch.nn.Module))
    held = tuple(
        shape_key(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
    return module._c.qualified_name, module.training, plain, held


@dataclass
class Call:
    """Makes steps from nodes."""

    name: str
    key: Any
    function: Callable
    inputs: Sequence[Any]
    state: Sequence[torch.Tensor] = ()  # of the module that it calls


class Tracer:
    """Runs a program once, and makes a step of each of its calls."""

    def __init__(self, program: Any, depth: int | None, builder: StepBuilder):
        self.depth, self.builder = depth, builder
        self.state = {id(tensor): tensor for tensor in (*program.parameters(), *program.buffers())}

    def visit(
        self, module: Any, method: str, arguments: Sequence[Any], prefix: str = "", level: int = 0
    ) -> Any:
        """The result of a method. `prefix` names the submodules, for example "encoder."."""
        graph = getattr(module, method).graph
        values = list(graph.inputs())
        if len(values) != len(arguments) + 1:
            raise ProfileError(
                f"the program takes {counted(len(values) - 1, 'input')}, but got {len(arguments)}"
            )
        if found := branching(graph):
            raise ProfileError(
                f"the forward of {prefix.rstrip('.') or 'the program'} branches on values ({found}): move the branching into a submodule, "
                "which is measured as a whole"
            )
        known = dict(zip((value.unique() for value in values), (module, *arguments), strict=True))
        alone = sum(map(computes, graph.nodes())) == 1
        for node in graph.nodes():
            self._run(node, known, prefix, level, alone)
        return known[next(graph.outputs()).unique()]

    def _run(self, node: Any, known: dict[int, Any], prefix: str, level: int, alone: bool) -> None:
        if node.kind() == CONSTANT:
            return  # its readers have it with them
        if node.kind() == ATTRIBUTE:
            known[node.output().unique()] = getattr(known[node.input().unique()], node.s("name"))
        elif node.kind() == METHOD:
            known[node.output().unique()] = self._call(node, known, prefix, level, alone)
        else:
            if node.hasAttribute("Subgraph"):  # what runs in it would be no step
                raise ProfileError(
                    f"the forward of {prefix.rstrip('.') or 'the program'} runs a part in parallel ({node.kind()}): move both into a "
                    "submodule, which is measured as a whole"
                )
            made = self._made(node, known, prefix)
            known |= zip(
                (value.unique() for value in node.outputs()),
                made if node.outputsSize() > 1 else [made],
                strict=False,
            )

    def _made(self, node: Any, known: dict[int, Any], prefix: str) -> Any:
        edit = edit_of(node)
        try:
            return (
                self._compute(node, known, prefix)
                if edit is None
                else edit(*(value_of(value, known) for value in node.inputs()))
            )
        except ProfileError:
            raise
        except Exception as error:  # of the program, on these inputs
            raise ProfileError(
                f"{prefix}{node.kind()} raised {type(error).__name__}: {in_short(error)}"
            ) from error

    def _compute(self, node: Any, known: dict[int, Any], prefix: str) -> Any:
        function, inputs = function_of(node), [known[value.unique()] for value in taken_by(node)]
        if computes(node):
            name = (
                prefix + str(node.inputsAt(0).type()).rpartition(".")[2]
                if node.kind() == FUNCTION
                else node.kind()
            )
            constants = [
                value.toIValue()
                for value in node.inputs()
                if value.node().kind() == CONSTANT and value.type().kind() != "FunctionType"
            ]
            return self.add(Call(name, (name, shape_key(constants)), function, inputs))
        return function(*inputs)

    def _call(self, node: Any, known: dict[int, Any], prefix: str, level: int, alone: bool) -> Any:
        first, *rest = node.inputs()
        module, method = known[first.unique()], node.s("name")
        inputs = [value_of(value, known) for value in rest]
        name = prefix + place_of(first) + ("" if method == FORWARD else f".{method}")
        function = getattr(module, method)
        opens = alone and not branching(function.graph) if self.depth is None else level < self.depth
        if opens:
            return self.visit(module, method, inputs, f"{name}.", level + 1)
        state = [*module.parameters(), *module.buffers()]
        return self.add(Call(name, module_key(module, method), function, inputs, state))

    def add(self, call: Call) -> Any:
        """Runs it as a step, and returns its result."""
        read = {id(tensor): tensor for tensor in tensors(call.inputs)}
        takes = [name for name in read if name not in self.state]
        for name in takes:
            self.builder.values.setdefault(name, read[name])  # made on the way, by no step
        state = {id(tensor): tensor for tensor in call.state} | {
            name: self.state[name] for name in read if name in self.state
        }

        def run(values: Sequence[Any]) -> tuple:
            now = dict(zip(takes, values, strict=True))
            with torch.jit.optimized_execution(False):
                return (
                    call.function(
                        *map_tensors(lambda tensor: now.get(id(tensor), tensor), list(call.inputs))
                    ),
                )

        key = (call.key, shape_key(list(call.inputs)))
        step = GraphStep(
            call.name,
            key,
            run,
            takes,
            list(state.values()),
            lambda outputs: [(id(tensor), tensor) for tensor in tensors(outputs)],
        )
        return self.builder.add(step)[0]


def build_program(job: Job, settings: Settings) -> Chain:
    """Rows of a job whose module is a TorchScript program. Raises ProfileError: what it branches on, or which
    step raised."""
    program: Any = job.module
    if isinstance(job.inputs, dict):
        raise ProfileError("a TorchScript program takes its inputs by position: pass them as a tuple")
    if not program._c._has_method(FORWARD):
        raise ProfileError("the program has no method forward")
    program.to(device=job.device.place, dtype=settings.dtype)
    inputs = moved(
        map_tensors(
            torch.Tensor.detach, job.inputs if isinstance(job.inputs, tuple | list) else (job.inputs,)
        ),
        job.device,
    )
    trainable = {id(parameter) for parameter in program.parameters() if parameter.requires_grad}
    builder = StepBuilder(trainable, job.device, {id(tensor): tensor for tensor in tensors(inputs)})
    tracer = Tracer(program, job.depth, builder)
    with torch.no_grad(), torch.jit.optimized_execution(False):
        result = tracer.visit(program, FORWARD, inputs)
    if not builder.chain.rows:
        raise ProfileError("the program runs no operators")
    if job.loss_fn is not None:
        name = getattr(job.loss_fn, "__name__", type(job.loss_fn).__name__)
        tracer.add(Call(f"loss ({name})", "loss", job.loss_fn, [result, moved(job.labels, job.device)]))
    builder.chain.digest = model_digest([(job.name, layer_parameters(program))])
    find_wanted(builder.chain)
    return builder.chain
