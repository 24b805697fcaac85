# SPDX-License-Identifier: Apache-2.0
"""What the layers of this rank cost while DeepSpeed's own engine runs them: time and memory, forward and backward.

    clock = LayerClock(model, device)     # device: ostinato.profile.machine.device
    with clock:                           # model.forward_funcs and loss_fn are wrapped; numbers stay what they are
        for repeat in rounds(1, 3):
            clock.counts = repeat >= 0
            ...                           # forwards
            clock.backward(run)           # one backward pass of the whole stage
    measured = clock.measured(settings)   # one a local layer; travels between processes
    row = cost_of(measured[0])            # as profiles hold it

The stopwatch is the profiler's (ostinato/profile/measure/samples.py), and so are samples and rows. A forward is measured as one
call. A backward is one autograd run for all layers of the stage: each notes when the gradient
of its output arrives, or when it is recomputed, and has the time from there to the next such event. An accelerator is
synchronised at each event, so that events are times of the device; hence this is for measuring, not for training. Where a
layer works in place on a view that the one before it returned, autograd drops that one's note, and the later layer has the time of both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from ostinato.profile.measure.footprint import Footprint
from ostinato.profile.measure.optimizer import StepClock
from ostinato.profile.measure.rows import layer_cost
from ostinato.profile.measure.samples import Samples, measure
from ostinato.profile.model.model_digest import layer_name
from ostinato.profile.model.tensors import bytes_of, tensors
from ostinato.profile.settings import StateBytes

from ..graph_model import wired
from ..place.model_identity import local_digests
from ..upstream import Model

STEPS_WARM_UP, STEPS = 1, 5  # of the optimizer


@dataclass
class Measured:
    """One layer, a sample a micro-batch. A backward's memory is that of the whole stage: its layers run backwards in one go."""

    index: int  # in the model
    name: str
    samples: Samples = field(default_factory=Samples)
    state: StateBytes = StateBytes(0, 0, 0, 0, 0)
    input_bytes: int = 0
    output_bytes: int = 0
    digest: str = ""  # model_digest
    step_time: int = 0  # ns of the optimizer's step; 0: not measured


class LayerClock:
    """Of one rank's layers, `model.forward_funcs`. Single-threaded but for autograd's own threads."""

    def __init__(self, model: Model, device):
        self._model, self._device = model, device
        indices = range(model._local_start, model._local_start + len(model.forward_funcs))
        self.layers = [Measured(i, layer_name(i, model._layer_specs[i])) for i in indices]
        self._events: list[tuple[int, int]] | None = None  # (ns, local layer) of the backward that runs
        self.counts = False  # whether what runs now does

    def __enter__(self) -> "LayerClock":
        model = self._model
        self._original, self._loss = model.forward_funcs, {name: vars(model)[name] for name in ["loss_fn"] if name in vars(model)}
        model.forward_funcs = [self._timed(i, function) for i, function in enumerate(model.forward_funcs)]
        if model.loss_fn is not None and model.forward_funcs:  # called on the last rank alone
            vars(model)["loss_fn"] = self._timed(len(self.layers) - 1, model.loss_fn, adds=True)
        self._memory = self._device.counted_memory()
        self._memory.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._memory.__exit__(*error)
        self._model.forward_funcs = self._original
        vars(self._model).pop("loss_fn", None)  # one that is a module is a child of the model, and was behind it
        vars(self._model).update(self._loss)

    def _timed(self, layer: int, function: Callable, adds: bool = False) -> Callable:
        """`adds`: part of a layer whose own call has been noted already, as the loss is of the last."""

        def run(*inputs: Any) -> Any:
            if self._events is not None:  # recomputed, which belongs to the backward
                self._note(layer)
                outputs = function(*inputs)
            else:
                outputs, sample = measure(self._device, f"{self.layers[layer].name} F", lambda: function(*inputs))
                if self.counts and adds:
                    self.layers[layer].samples.forward[-1] = self.layers[layer].samples.forward[-1].then(sample)
                elif self.counts:
                    self._add(layer, sample, inputs[0], outputs)
            self._watch(layer, outputs)
            return outputs

        return run

    def _add(self, layer: int, sample: Any, inputs: Any, outputs: Any) -> None:
        measured, node = self.layers[layer], wired(self._original[layer])
        measured.samples.forward.append(sample)
        if node is not None:  # what rides along for later layers is not this one's
            inputs, outputs = node.taken(inputs), node.made(outputs)
        measured.input_bytes, measured.output_bytes = bytes_of(inputs), bytes_of(outputs)

    def _watch(self, layer: int, outputs: Any) -> None:
        """The first gradient that arrives at an output is where the layer's backward begins."""
        for tensor in tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._note(layer))

    def _note(self, layer: int) -> None:
        if self._events is not None:
            self._events.append((self._device.now(), layer))

    def backward(self, run: Callable[[], Any]) -> None:
        """Calls `run`, which is one backward pass of the whole stage."""
        events: list[tuple[int, int]] = []
        self._events = events
        try:
            _, whole = measure(self._device, "B", run)
        finally:
            self._events = None
        if not self.counts or not events:
            return
        spent = dict.fromkeys(range(len(self.layers)), 0)
        edges = [whole.start, *(at for at, _ in events[1:]), whole.start + whole.time]  # what leads to the first event is that layer's
        for number, (_, layer) in enumerate(events):
            spent[layer] += edges[number + 1] - edges[number]
        for layer, nanoseconds in spent.items():
            self.layers[layer].samples.backward.append(replace(whole, time=nanoseconds))

    def measured(self, settings, steps: StepClock | None = None) -> list[Measured]:
        """`settings` (ostinato.profile.settings) knows what a parameter costs in gradients and optimizer state, `steps` in time."""
        digests = local_digests(self._model)
        for layer, function in zip(self.layers, self._model.forward_funcs, strict=True):
            held = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
            trained = [p for p in held if p.requires_grad]
            layer.state = settings.state_bytes(trained, bytes_of(held))
            layer.step_time = steps.time(trained, STEPS_WARM_UP, STEPS) if steps else 0
            layer.digest = digests[layer.index]
        return self.layers


def largest(samples: Samples) -> Footprint:
    """Of all that was seen. What is freed when the outputs are let go was not."""
    forward, backward = ([*getattr(samples, phase)] for phase in ("forward", "backward"))
    kept = max((sample.kept for sample in forward), default=0)
    peak = max((sample.peak for sample in backward), default=0)
    return Footprint(max((sample.peak for sample in forward), default=0), kept, kept, peak, peak)


def cost_of(measured: Measured) -> Any:
    """The row of a profile; the halves of backwards are not measured."""
    row = layer_cost(measured.samples, largest(measured.samples), measured.state, measured.input_bytes, measured.output_bytes)
    row.step_time = measured.step_time
    row.index, row.name, row.digest, row.same_as = measured.index, measured.name, measured.digest, -1
    return row
