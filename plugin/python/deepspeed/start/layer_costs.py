# SPDX-License-Identifier: Apache-2.0
"""Measures the layers of this rank: the profiler (ostinato.profile.measure) runs each by itself, on the inputs
that it gets in DeepSpeed's engine.

    chosen = chosen_of([512, 530, 2048])                   # micro-batches of a step that represent all
    measured = measure(engine, items, len(chosen), device, settings, steps)      # one per local layer; can be sent between processes
    rows = [layer.row() for layer in measured]             # as profiles hold them

The engine cannot train afterwards: its parameters have lost DeepSpeed's gradient hooks.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from ostinato.profile.machine import freed_memory
from ostinato.profile.machine.counted import check_counted
from ostinato.profile.measure.footprint import Footprint, footprint
from ostinato.profile.measure.optimizer import StepClock
from ostinato.profile.measure.passes import in_turns
from ostinato.profile.measure.rows import layer_cost
from ostinato.profile.measure.samples import Samples, counted_memory
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, autocast_of, recomputed, under_autocast
from ostinato.profile.model.model_digest import layer_name
from ostinato.profile.model.outputs import Staying, stays
from ostinato.profile.model.tensors import Copies, bytes_of, map_tensors, tensors
from ostinato.profile.settings import Settings, StateBytes
from torch import nn

from ..data.items import again, making_once
from ..graph_model import wired
from ..place.model_identity import local_digests
from ostinato.buffers import modules_of
from ..stages.loss import loss_replaced
from ..upstream import Engine, Model

WARM_UP, REPEATS = 2, 10
APART = 1.25  # least ratio of two measured sizes


@dataclass
class MeasuredLayer:
    """One layer. Samples and memory are from the first of the chosen micro-batches."""

    index: int  # in the model
    name: str
    digest: str  # model_digest
    samples: Samples
    memory: Footprint
    state: StateBytes
    input_bytes: int
    output_bytes: int
    step_time: int  # ns of the optimizer's step; 0: not measured
    stays: Staying  # of its outputs
    by_size: list[tuple[int, int]]  # ns of forward and backward, for each chosen micro-batch

    def row(self) -> Any:
        """The layer's row in a profile. Halves of backwards are not measured."""
        row = layer_cost(self.samples, self.memory, self.state, self.input_bytes, self.output_bytes)
        row.step_time = self.step_time
        row.index = self.index
        row.name = self.name
        row.digest = self.digest
        row.same_as = -1
        return row


@dataclass
class _Local(Layer):
    """A layer of this rank."""

    function: Any = None  # that the PipelineModule calls
    bytes_taken: int = 0
    bytes_made: int = 0


def chosen_of(sizes: Sequence[float]) -> list[int]:
    """Micro-batches that represent all: the one nearest to the mean in size, and more with sizes at least a
    quarter apart."""
    mean = statistics.fmean(sizes)
    chosen = [min(range(len(sizes)), key=lambda i: abs(sizes[i] - mean))]
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        if all(max(sizes[i], sizes[j]) >= APART * min(sizes[i], sizes[j]) for j in chosen):
            chosen.append(i)
    return chosen


def rows_by_size(
    sizes: Sequence[float], layers: Sequence[MeasuredLayer]
) -> list[tuple[int, list[int], list[int]]]:
    """(size, forwards, backwards), by ascending size. No time is below a smaller size's, so noise cannot give
    the extrapolation a negative slope.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    forwards, backwards = (
        [[*accumulate((layer.by_size[i][phase] for i in order), max)] for layer in layers] for phase in (0, 1)
    )
    return [
        (int(sizes[i]), [times[k] for times in forwards], [times[k] for times in backwards])
        for k, i in enumerate(order)
    ]


def measure(
    engine: Engine, items: list[Any], count: int, device: Any, settings: Settings, steps: StepClock | None
) -> list[MeasuredLayer]:
    """`items`: of the `count` micro-batches, or [] on ranks that read none; `device`: of
    ostinato.profile.machine.device. `settings` knows the memory of gradients and optimizer state per parameter,
    `steps` the optimizer's time. All ranks must call it, because layers may run collectives. Raises ProfileError
    with the layer's name.
    """
    check_counted(device)
    model, job = engine.module, Job(warm_up=WARM_UP, repeats=REPEATS)
    _let_go_of_hooks(model)
    layers = _layers_of(engine, items, count, device)
    if device.place.type == "cpu":
        freed_memory.keep()  # as the engine does under a plan
    with torch.enable_grad(), counted_memory(device):
        samples = [in_turns(of_item, job, split=False) for of_item in layers]
        memory = [footprint(layer) for layer in layers[0]]
        step_times = [steps.time(layer.parameters, WARM_UP, REPEATS) if steps else 0 for layer in layers[0]]
    digests, found = local_digests(model), []
    for place, layer in enumerate(layers[0]):
        times = [
            tuple(of_item[place].spread(phase).median for phase in ("forward", "backward"))
            for of_item in samples
        ]
        state = settings.state_bytes(layer.parameters, layer.parameter_bytes)
        sent = layer.bytes_taken, layer.bytes_made
        found.append(
            MeasuredLayer(
                layer.index,
                layer.name,
                digests[layer.index],
                samples[0][place],
                memory[place],
                state,
                *sent,
                step_times[place],
                layer.stays,
                times,
            )
        )
    return found


def _let_go_of_hooks(model: Model) -> None:
    """Replaces the parameters by copies without hooks: else DeepSpeed's optimizers would reduce the
    gradients."""
    fresh: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                made = fresh.setdefault(
                    id(parameter), nn.Parameter(parameter.detach(), parameter.requires_grad)
                )
                made.__dict__.update(parameter.__dict__)
                module._parameters[name], parameter.grad = made, None


def _layers_of(engine: Engine, items: list[Any], count: int, device: Any) -> list[list[_Local]]:
    """By micro-batch, this rank's layers with their inputs, which a forward of each notes. Checkpointing is off
    in it, because it would hide which inputs need a gradient.
    """
    model = engine.module
    model.train()
    engine.total_loss, engine._compute_loss = None, True
    functions, interval, loss = model.forward_funcs, model.activation_checkpoint_interval, model.loss_fn
    noted: list[list[_Local]] = [[] for _ in functions]
    model.forward_funcs = [
        partial(_noted, _layer(engine, place, device), noted[place]) for place in range(len(functions))
    ]
    measured = partial(_with_loss, model, noted[-1], loss)
    model.activation_checkpoint_interval = 0
    engine.data_iterator = again(items)
    try:
        with loss_replaced(model, measured) if loss is not None else nullcontext(), making_once(engine):
            engine._exec_schedule(schedule.InferenceSchedule(count, engine.num_stages, engine.stage_id))
    finally:
        model.forward_funcs, model.activation_checkpoint_interval = functions, interval
        engine.loss = None
        engine.pipe_buffers = {name: [None] * len(buffers) for name, buffers in engine.pipe_buffers.items()}
    return [list(of_item) for of_item in zip(*noted, strict=True)]


def _layer(engine: Engine, place: int, device: Any) -> _Local:
    """The local layer at this place, without inputs."""
    model = engine.module
    index, function = model._local_start + place, model.forward_funcs[place]
    held = list(
        {
            id(t): t for module in modules_of(function) for t in (*module.parameters(), *module.buffers())
        }.values()
    )
    trained = [t for t in held if isinstance(t, nn.Parameter) and t.requires_grad]
    checkpointed = model.activation_checkpoint_interval > 0 and model._is_checkpointable([function])
    run = under_autocast(function, engine.device, autocast_of(engine))
    name = layer_name(index, model._layer_specs[index])
    return _Local(
        index, name, run, None, None, trained, bytes_of(held), [], checkpointed, device, function=function
    )


def _noted(layer: _Local, noted: list[_Local], inputs: Any) -> Any:
    reached = [tensor.requires_grad for tensor in tensors(inputs)]
    copies, node = Copies(), wired(layer.function)  # the layer may change its inputs
    given = map_tensors(lambda tensor: copies.of(tensor.detach()), inputs)
    outputs = layer.run(inputs)
    # Without values that only pass through to later layers.
    taken, made = (given, outputs) if node is None else (node.taken(given), node.made(outputs))
    run = recomputed(layer.run) if layer.checkpointed else layer.run
    sizes = bytes_of(taken), bytes_of(made)
    noted.append(
        replace(
            layer,
            run=run,
            inputs=given,
            reached=reached,
            bytes_taken=sizes[0],
            bytes_made=sizes[1],
            stays=stays(outputs),
        )
    )
    return outputs


def _with_loss(model: Model, noted: list[_Local], loss_fn: Callable, outputs: Any, labels: Any) -> Any:
    """Makes the loss part of the last layer, which then also takes the labels."""
    last, given = noted[-1], map_tensors(_copy, labels)  # a loss may write to them

    def run(both: Any) -> Any:
        made = last.run(both[0])
        _cut_from_layers(model)
        return loss_fn(made, both[1])

    noted[-1] = replace(last, run=run, inputs=(last.inputs, given))
    return loss_fn(outputs, labels)


def _cut_from_layers(model: Model) -> None:
    """What a layer has stored on the model for the loss is an input where layers run one by one."""
    for name, value in vars(model).items():
        if torch.is_tensor(value) and value.grad_fn is not None:
            vars(model)[name] = value.detach()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()
