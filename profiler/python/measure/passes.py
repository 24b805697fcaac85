# SPDX-License-Identifier: Apache-2.0
"""Forward, backward and split backward of one layer, each with its time and memory.

What is measured is the call alone: inputs are copied, gradients of parameters exist, and gradients of outputs are made
before the clock starts. Time is the steady clock's (a layer that waits costs its wait); on a device with a clock of its own,
device_times.py puts its times in place. Memory is what the device's allocator saw.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.layer import Layer, call, prepare, roots_of
from ostinato.profile.model.tensors import tensors

NOTHING = nullcontext()
Passes = Callable[[str], AbstractContextManager]  # entered around the call of this phase alone


def no_passes(_phase: str) -> AbstractContextManager:
    return NOTHING


@dataclass
class Sample:
    time: int  # ns
    kept: int  # bytes that are live after it and were not before
    peak: int  # largest number of bytes above those before it


def measure(
    device: Any, name: str, function: Callable[[], Any], around: AbstractContextManager = NOTHING
) -> tuple[Any, Sample]:
    """The function's result and cost. `name` is that of the range that NVTX tools show; `around` is entered for the call alone:
    a range of the device's timer must not hold the host's own time before it."""
    device.synchronize()
    before = device.live_bytes()
    device.reset_peak()
    with _profiler.Range(name), around:
        start = _profiler.now()
        result = function()
        time = _profiler.now() - start
    return result, Sample(time, device.live_bytes() - before, device.peak_bytes() - before)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection inside a measurement: it would give back memory that is not the layer's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass
class Started:
    """A layer whose forward has run, ready for its backward."""

    leaves: list[torch.Tensor]  # get the gradients of the inputs
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def check_shapes(layer: Layer, outputs: Any) -> None:
    """What is measured stands for every micro-batch, so a layer must give the same shapes for the same inputs."""
    shapes = [tuple(tensor.shape) for tensor in tensors(outputs)]
    if not layer.shapes:
        layer.shapes = shapes
    if shapes != layer.shapes:
        raise ProfileError(
            f"layer {layer.name} gave outputs of shapes {layer.shapes}, and then {shapes} for inputs of the same shapes: pad "
            "them to a fixed shape, for a plan has one time and one size for each layer"
        )


def forward(layer: Layer, label: str, around: AbstractContextManager = NOTHING) -> tuple[Started, Sample]:
    """`around` is entered for the call alone."""
    leaves, inputs = prepare(layer)
    try:
        outputs, sample = measure(layer.device, label, lambda: call(layer, inputs), around)
    except Exception as error:
        raise ProfileError(f"layer {layer.name} raised {type(error).__name__} in its forward: {error}") from error
    check_shapes(layer, outputs)
    roots = roots_of(layer, outputs)
    return Started(leaves, roots, [torch.ones_like(tensor) for tensor in roots]), sample


def backward(layer: Layer, started: Started, label: str, around: AbstractContextManager = NOTHING) -> Sample:
    """Nothing, where no gradient arrives that a parameter or an earlier layer learns from."""
    if not started.outputs:
        with around:
            return Sample(0, 0, 0)

    def run() -> None:
        torch.autograd.backward(started.outputs, started.gradients)

    try:
        return measure(layer.device, label, run, around)[1]
    except Exception as error:
        raise ProfileError(f"layer {layer.name} raised {type(error).__name__} in its backward: {error}") from error


def split_backward(
    layer: Layer, started: Started, label: str, passes: Passes = no_passes
) -> tuple[Sample, Sample] | None:
    """Input half and weight half as the executor runs them, or None where it runs them as one. Where there is but one of them, it
    is the whole backward, and the other takes 0. Which node belongs to which half is found out before the clock starts."""
    nothing = Sample(0, 0, 0)
    if not started.outputs:
        return nothing, nothing
    halves = _profiler.BackwardHalves(started.outputs, started.leaves)
    if not halves.can_split:
        backward(layer, started, f"{label} B")
        return None
    if not halves.has_input_half:
        return nothing, backward(layer, started, f"{label} W", passes("backward_weight"))
    if not halves.has_weight_half:
        return backward(layer, started, f"{label} I", passes("backward_input")), nothing
    gradients = list(started.gradients)
    started.gradients.clear()
    arrived = sum(gradient.untyped_storage().nbytes() for gradient in gradients)

    def run_inputs() -> list[torch.Tensor]:
        made = halves.run_inputs(gradients)
        gradients.clear()  # as the executor lets them go: what the weight half is still to read stays
        return made

    try:
        _, first = measure(layer.device, f"{label} I", run_inputs, passes("backward_input"))
        first = replace(first, kept=first.kept + arrived)
        halves.cut()
        _, second = measure(layer.device, f"{label} W", halves.run_weights, passes("backward_weight"))
    except Exception as error:
        raise ProfileError(f"layer {layer.name} raised {type(error).__name__} in its split backward: {error}") from error
    return first, second


@dataclass
class Samples:
    """Of one layer, over the repeats."""

    forward: list[Sample] = field(default_factory=list)
    backward: list[Sample] = field(default_factory=list)
    input_half: list[Sample] = field(default_factory=list)
    weight_half: list[Sample] = field(default_factory=list)

    def spread(self, which: str):
        return _profiler.spread_of([sample.time for sample in getattr(self, which)])


def repeat_once(
    layer: Layer, repeat: int, samples: Samples | None, split: bool = True, passes: Passes = no_passes
) -> None:
    """One split and one whole round. `samples` is None while warming up.

    The whole round comes second, on warm caches, as a layer finds them that runs micro-batch after micro-batch.
    """
    with quiet_collector():
        started, _ = forward(layer, f"{layer.name} F {repeat}")
        if layer.checkpointed or not split:  # a checkpoint recomputes inside the backward, which cannot be split
            halves = None
            backward(layer, started, f"{layer.name} B {repeat}")
        else:
            halves = split_backward(layer, started, f"{layer.name} {repeat}", passes)
        started, first = forward(layer, f"{layer.name} F {repeat}", passes("forward"))
        second = backward(layer, started, f"{layer.name} B {repeat}", passes("backward"))
        if samples is None:
            return
        samples.forward.append(first)
        samples.backward.append(second)
        if halves is not None:
            samples.input_half.append(halves[0])
            samples.weight_half.append(halves[1])
