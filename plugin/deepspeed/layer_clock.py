# SPDX-License-Identifier: Apache-2.0
"""What the layers of this rank cost while DeepSpeed's own engine runs them: time and memory, forward and backward.

    clock = LayerClock(model)
    with clock:                           # model.forward_funcs and loss_fn are wrapped; numbers stay what they are
        ...                               # forwards
        with clock.backward():
            ...                           # one backward pass of the whole stage
    measured = clock.measured(settings)   # one a local layer; travels between processes
    row = cost_of(measured[0])            # as profiles hold it

Forwards are timed around the call. A backward is one autograd run for all layers of the stage: each notes when the gradient
of its output arrives, or when it is recomputed, and has the time from there to the next such event. An accelerator is
synchronised at each event, so that events are times of the device; hence this is for measuring, not for training. Where a
layer works in place on a view that the one before it returned, autograd drops that one's note, and the later layer has the time of both.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from ostinato.profile.model.model_digest import layer_name
from ostinato.profile.model.tensors import bytes_of, tensors

from ostinato import _profiler

from .graph_model import wired
from .model_identity import local_digests


class Meter:
    """Bytes in use: of the accelerator's allocator, or of the processor's (counted from now on)."""

    def __init__(self):
        from deepspeed.accelerator import get_accelerator

        self._accelerator = get_accelerator()
        self._counts = self._accelerator.device_name() == "cpu"

    def __enter__(self) -> "Meter":
        if self._counts:
            _profiler.install_allocator()
        return self

    def __exit__(self, *_) -> None:
        if self._counts:
            _profiler.remove_allocator()

    def now(self) -> int:
        return _profiler.live_bytes() if self._counts else self._accelerator.memory_allocated()

    def peak(self) -> int:
        """Since the last reset()."""
        return _profiler.peak_bytes() if self._counts else self._accelerator.max_memory_allocated()

    def reset(self) -> None:
        _profiler.reset_peak() if self._counts else self._accelerator.reset_peak_memory_stats()

    def synchronize(self) -> None:
        if not self._counts:
            self._accelerator.synchronize()


@dataclass
class Measured:
    """One layer. Times in nanoseconds, one a micro-batch; memory in bytes, the largest that was seen."""

    index: int  # in the model
    name: str
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    kept: int = 0
    forward_workspace: int = 0
    backward_workspace: int = 0  # of the whole stage: its layers run backwards in one go
    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    step_together: int = 0  # ostinato.profile.settings
    step_alone: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    digest: str = ""  # model_digest


class LayerClock:
    """Of one rank's layers, `model.forward_funcs`. Single-threaded but for autograd's own threads."""

    def __init__(self, model):
        self._model, self._meter = model, Meter()
        indices = range(model._local_start, model._local_start + len(model.forward_funcs))
        self._layers = [Measured(i, layer_name(i, model._layer_specs[i])) for i in indices]
        self._events: list[tuple[int, int]] | None = None  # (ns, local layer) of the backward that runs
        self._warm = False

    def __enter__(self) -> "LayerClock":
        model = self._model
        self._original, self._loss = model.forward_funcs, {name: vars(model)[name] for name in ["loss_fn"] if name in vars(model)}
        model.forward_funcs = [self._timed(i, function) for i, function in enumerate(model.forward_funcs)]
        if model.loss_fn is not None and model.forward_funcs:  # called on the last rank alone
            vars(model)["loss_fn"] = self._timed(len(self._layers) - 1, model.loss_fn, adds=True)
        self._meter.__enter__()
        return self

    def __exit__(self, *_) -> None:
        self._meter.__exit__()
        self._model.forward_funcs = self._original
        vars(self._model).pop("loss_fn", None)  # one that is a module is a child of the model, and was behind it
        vars(self._model).update(self._loss)

    def warm(self) -> None:
        """What comes from now on counts."""
        self._warm = True

    def _timed(self, layer: int, function: Callable, adds: bool = False) -> Callable:
        """`adds`: part of a layer whose own call has been noted already, as the loss is of the last."""

        def run(*inputs: Any) -> Any:
            recomputes = self._events is not None
            begin, before = self._note(layer), self._meter.now()
            self._meter.reset()
            outputs = function(*inputs)
            self._watch(layer, outputs)
            if not recomputes and self._warm:
                self._add(layer, adds, self._now() - begin, before, inputs[0], outputs)
            return outputs

        return run

    def _add(self, layer: int, adds: bool, time: int, before: int, inputs: Any, outputs: Any) -> None:
        measured, kept = self._layers[layer], max(0, self._meter.now() - before)
        measured.forward_workspace = max(measured.forward_workspace, self._meter.peak() - before - kept)
        if adds:
            measured.forward[-1] += time
            return
        measured.forward.append(time)
        measured.kept = max(measured.kept, kept)
        node = wired(self._original[layer])
        if node is not None:  # what rides along for later layers is not this one's
            inputs, outputs = node.taken(inputs), node.made(outputs)
        measured.input_bytes, measured.output_bytes = bytes_of(inputs), bytes_of(outputs)

    def _watch(self, layer: int, outputs: Any) -> None:
        """The first gradient that arrives at an output is where the layer's backward begins."""
        for tensor in tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._note(layer) and None)

    def _now(self) -> int:
        self._meter.synchronize()
        return time.perf_counter_ns()

    def _note(self, layer: int) -> int:
        now = self._now()
        if self._events is not None:
            self._events.append((now, layer))
        return now

    @contextmanager
    def backward(self) -> Iterator[None]:
        self._events, before = [], self._meter.now()
        self._meter.reset()
        begin = self._now()
        yield
        end, events, self._events = self._now(), self._events, None
        if not self._warm or not events:
            return
        spent = dict.fromkeys(range(len(self._layers)), 0)
        edges = [begin, *(at for at, _ in events[1:]), end]  # what leads to the first event is that layer's
        for number, (_, layer) in enumerate(events):
            spent[layer] += edges[number + 1] - edges[number]
        workspace = max(0, self._meter.peak() - before)
        for layer, nanoseconds in spent.items():
            measured = self._layers[layer]
            measured.backward.append(nanoseconds)
            measured.backward_workspace = max(measured.backward_workspace, workspace)

    def measured(self, settings) -> list[Measured]:
        """`settings` (ostinato.profile.settings) knows what a parameter costs in gradients and optimizer state."""
        digests = local_digests(self._model)
        for layer, function in zip(self._layers, self._model.forward_funcs, strict=True):
            held = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
            trained = [p for p in held if p.requires_grad]
            layer.parameters, layer.digest = bytes_of(held), digests[layer.index]
            layer.gradients = settings.gradient_bytes(trained)
            layer.optimizer_state = settings.optimizer_bytes(trained)
            layer.step_together, layer.step_alone = settings.step_bytes(trained)
        return self._layers


def cost_of(measured: Measured) -> Any:
    """The row of a profile; the halves of backwards are not measured."""
    row = _profiler.LayerCost()
    row.same_as = -1
    for name, value in vars(measured).items():
        setattr(row, name, _profiler.spread_of(value) if isinstance(value, list) else value)
    return row
