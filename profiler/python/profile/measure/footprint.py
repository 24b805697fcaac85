# SPDX-License-Identifier: Apache-2.0
"""What one layer, or a stage as a whole, holds in memory: measured in a separate run, as it runs inside a
stage.

The outputs are let go after the forward, as the layer behind or the transfer does; the gradient that arrives
is made by the backward of the layer behind, so it is made inside the measurement, and its reader frees it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.samples import quiet_collector
from ostinato.profile.model.layer import Layer, prepare, roots_of


@dataclass
class Footprint:
    """Bytes above what was there before the layer ran. Its inputs were there."""

    forward_peak: int
    with_outputs: int  # after the forward
    kept: int  # when the outputs have been let go
    # Above what was there before the backward, with the gradient that arrives:
    backward_peak: int  # where nothing else holds the inputs: each is freed once the backward has read it
    backward_beside: int  # where an earlier backward needs them as well
    inference_peak: int  # of a forward without a graph

    @property
    def workspace(self) -> int:
        """Of a stage: its peak above what it keeps; its outputs are in it."""
        return max(self.forward_peak - self.kept, self.backward_peak)


RUNS = 20  # of a layer that varies


class Arrival(torch.autograd.Function):
    """Gives a gradient as the next layer would: only the backward holds it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.like = output.shape, output.dtype, output.device
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, _seed: torch.Tensor) -> torch.Tensor:
        shape, dtype, device = ctx.like
        return torch.ones(shape, dtype=dtype, device=device)


def footprint(layer: Layer) -> Footprint:
    """Runs it twice; a layer that varies more often, and its largest figures count. Raises ProfileError with
    the layer's name."""
    try:
        with quiet_collector():
            runs = [run_both(layer) for _ in range(RUNS if layer.varies else 1)]
        return Footprint(*map(max, zip(*map(astuple, runs), strict=True)))
    except Exception as error:
        raise ProfileError(f"layer {layer.name} raised {type(error).__name__}: {error}") from error


def run_both(layer: Layer) -> Footprint:
    forward_peak, with_outputs, kept, released = run_through(layer, holds_inputs=False)
    beside = run_through(layer, holds_inputs=True)[3]
    try:
        inference_peak = run_without_graph(layer)
    except Exception:  # its forward differentiates
        inference_peak = forward_peak
    return Footprint(forward_peak, with_outputs, kept, released, beside, inference_peak)


def run_without_graph(layer: Layer) -> int:
    """Its peak."""
    device = layer.device
    _leaves, inputs = prepare(layer)
    device.synchronize()
    before = device.live_bytes()
    device.reset_peak()
    with torch.no_grad():
        layer.run(inputs)
    return max(0, device.peak_bytes() - before)


def run_through(layer: Layer, holds_inputs: bool) -> tuple[int, int, int, int]:
    """The first four figures of a Footprint; the last of them with the inputs held through the backward, or not."""
    device = layer.device
    _leaves, inputs = prepare(layer)
    device.synchronize()
    before = device.live_bytes()
    device.reset_peak()
    outputs = layer.run(inputs)
    forward_peak, with_outputs = device.peak_bytes() - before, device.live_bytes() - before
    roots = roots_of(layer, outputs)
    seeds = [torch.zeros((), dtype=root.dtype, device=root.device).expand(root.shape) for root in roots]
    edges = [get_gradient_edge(Arrival.apply(root)) for root in roots]
    small = sum(seed.untyped_storage().nbytes() for seed in seeds)
    del outputs, roots
    kept = max(0, device.live_bytes() - small - before)
    if not holds_inputs:
        del inputs
    live = device.live_bytes()
    device.reset_peak()
    if edges:
        torch.autograd.backward(edges, seeds)
    return forward_peak, with_outputs, kept, device.peak_bytes() - live
