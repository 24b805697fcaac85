# SPDX-License-Identifier: Apache-2.0
"""Forward, backward and split backward of one layer, each with its time and memory.

What is measured (samples.py) is the call alone: inputs are copied, gradients of parameters exist, and
gradients of outputs are made before the clock starts. Time is the steady clock's on a CPU (a layer that waits
costs its wait), and that between two events on an accelerator's stream, gaps in which the device waits for a
launch included. Memory is what the device's allocator saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.samples import (
    NOTHING,
    Progress,
    Sample,
    Samples,
    measure,
    no_progress,
    quiet_collector,
    rounds,
)
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, named_in_errors, prepare, roots_of
from ostinato.profile.model.tensors import tensors


@dataclass
class Started:
    """A layer whose forward has run, ready for its backward."""

    leaves: list[torch.Tensor]  # get the gradients of the inputs
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def check_shapes(layer: Layer, outputs: Any) -> None:
    """What is measured stands for every micro-batch, so a layer must give the same shapes for the same
    inputs."""
    shapes = [tuple(tensor.shape) for tensor in tensors(outputs)]
    if not layer.shapes:
        layer.shapes = shapes
    if shapes != layer.shapes:
        raise ProfileError(
            f"layer {layer.name} returned shapes {layer.shapes}, and then {shapes} for inputs of the same shapes: pad "
            "them to a fixed shape, because a plan has one time and one size per layer"
        )


def forward(layer: Layer, label: str, around: AbstractContextManager = NOTHING) -> tuple[Started, Sample]:
    """`around` is entered for the call alone."""
    leaves, inputs = prepare(layer)
    with named_in_errors(layer, "forward"):
        outputs, sample = measure(layer.device, label, lambda: layer.run(inputs), around)
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

    with named_in_errors(layer, "backward"):
        return measure(layer.device, label, run, around)[1]


def split_backward(layer: Layer, started: Started, label: str) -> tuple[Sample, Sample] | None:
    """Input half and weight half as the executor runs them, or None where it runs them as one. Where there is
    but one of them, it is the whole backward, and the other takes 0. Which node belongs to which half is
    found out before the clock starts."""
    nothing = Sample(0, 0, 0)
    if not started.outputs:
        return nothing, nothing
    halves = _profiler.BackwardHalves(started.outputs, started.leaves)
    if not halves.can_split:
        backward(layer, started, f"{label} B")
        return None
    if not halves.has_input_half:
        return nothing, backward(layer, started, f"{label} W")
    if not halves.has_weight_half:
        return backward(layer, started, f"{label} I"), nothing
    gradients = list(started.gradients)
    started.gradients.clear()
    arrived = sum(gradient.untyped_storage().nbytes() for gradient in gradients)

    def run_inputs() -> list[torch.Tensor]:
        made = halves.run_inputs(gradients)
        gradients.clear()  # as the executor lets them go: what the weight half is still to read stays
        return made

    with named_in_errors(layer, "split backward"):
        _, first = measure(layer.device, f"{label} I", run_inputs)
        halves.cut()
        _, second = measure(layer.device, f"{label} W", halves.run_weights)
    return replace(first, kept=first.kept + arrived), second


def repeat_once(layer: Layer, repeat: int, samples: Samples | None, split: bool = True) -> None:
    """One split and one whole round. `samples` is None while warming up.

    The whole round comes second, on warm caches, as a layer finds them that runs micro-batch after
    micro-batch.
    """
    with quiet_collector():
        started, _ = forward(layer, f"{layer.name} F {repeat}")
        # A checkpoint recomputes inside the backward, which cannot be split.
        if layer.checkpointed or not split:
            halves = None
            backward(layer, started, f"{layer.name} B {repeat}")
        else:
            halves = split_backward(layer, started, f"{layer.name} {repeat}")
        started, first = forward(layer, f"{layer.name} F {repeat}")
        second = backward(layer, started, f"{layer.name} B {repeat}")
        if samples is None:
            return
        samples.forward.append(first)
        samples.backward.append(second)
        if halves is not None:
            samples.input_half.append(halves[0])
            samples.weight_half.append(halves[1])


def in_turns(
    layers: Sequence[Layer], job: Job, split: bool = True, progress: Progress = no_progress
) -> list[Samples]:
    """Round by round over all layers, so that what disturbs the machine for a while is spread over them."""
    samples = [Samples() for _ in layers]
    for repeat in rounds(job.warm_up, job.repeats):
        for layer, into in zip(layers, samples, strict=True):
            repeat_once(layer, repeat, into if repeat >= 0 else None, split)
        progress("layers", repeat + 1 + job.warm_up, job.warm_up + job.repeats)
    return samples
