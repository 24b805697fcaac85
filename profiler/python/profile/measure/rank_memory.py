# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of a rank while a micro-batch runs: recorded from the allocator, not added up from
rows.

    recordings = record_memory(job, profile, ranks=2)     # one a rank: its layers are rebuilt, one rank after another
    recordings[0].peak(), recordings[0].counted_peak      # bytes: what the owners hold at most, and what the allocator counted

owners.py says who owns what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.measure.owners import GRADIENTS, PARAMETERS, RECEIVED, Log, Recording, Span, storages
from ostinato.profile.measure.passes import repeat_once
from ostinato.profile.measure.samples import Progress, counted_memory, no_progress, quiet_collector
from ostinato.profile.model.build import Builder, build_chain, has_branches, with_loss
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.graph import arguments
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, prepare, roots_of, under_autocast
from ostinato.profile.model.stage import BuiltStage, StageLayer, build_stage, cuts_of, whole_of
from ostinato.profile.model.tensors import bytes_of, moved, tensors
from ostinato.profile.settings import Settings, read_settings


def run_forward(steps: Sequence[StageLayer], value: Any, spans: list[Span]) -> Any:
    """The outputs. Nothing else is held: what no backward needs is freed when the next layer has run, as in
    training."""
    for step in steps:
        start = _profiler.now()
        value = step.run(value)
        spans.append(Span(step.name, start, _profiler.now()))
    return value


def run_backward(outputs: list[torch.Tensor], gradients: list[torch.Tensor], spans: list[Span]) -> None:
    start = _profiler.now()
    if outputs:
        torch.autograd.backward(outputs, gradients)
    spans.append(Span("", start, _profiler.now()))


def ones_for(layer: Layer) -> list[torch.Tensor]:
    """Gradients of its outputs, as the next rank would send them; runs it once, which also warms the
    allocator's caches up."""
    repeat_once(layer, -1, None, split=False)
    return [torch.ones_like(tensor) for tensor in roots_of(layer, layer.run(prepare(layer)[1]))]


def micro_batch(
    stage: BuiltStage, layer: Layer, inputs: list[Any], gradients: list[torch.Tensor]
) -> list[Span]:
    """Forwards and the backward; takes the inputs out of their list, so that they are freed when nothing
    needs them."""
    spans: list[Span] = []
    outputs = roots_of(layer, run_forward(stage.steps, inputs.pop(), spans))
    run_backward(outputs, gradients, spans)
    return spans


def record_stage(stage: BuiltStage, layer: Layer, events: Any) -> Recording:
    """`layer`: the stage as a whole. `events`: a MemoryLog."""
    gradients = ones_for(layer)
    with quiet_collector():
        inputs = [prepare(layer)[1]]
        known = storages(RECEIVED, [*tensors(inputs), *gradients])
        known |= storages(GRADIENTS, [parameter.grad for parameter in stage.parameters])
        known |= storages(PARAMETERS, stage.state)
        with Log(layer.device, known, events) as log:
            spans = micro_batch(stage, layer, inputs, gradients)
    return log.recording(stage.first, stage.last, spans)


def needed(rows: Sequence[Any]) -> int:
    """Bytes that a micro-batch through these layers takes, by the profile."""
    workspace = max(max(row.forward_workspace, row.backward_workspace) for row in rows)
    return sum(row.parameters + row.gradients + row.kept for row in rows) + workspace


def module_stage(job: Job, settings: Settings, layers: int) -> tuple[BuiltStage, Layer]:
    """A module that is profiled as a graph: its forward is one step here."""
    assert job.module is not None
    module = job.module.to(device=job.device.place, dtype=settings.dtype)
    inputs = moved(job.inputs, job.device)

    def run(values: Any) -> Any:
        positional, named = arguments(values)
        return under_autocast(module, job.device.place, job.autocast)(*positional, **named)

    if job.loss_fn is not None:
        run = with_loss(run, job)
    parameters = [p for p in module.parameters() if p.requires_grad]
    state = [*module.parameters(), *module.buffers()]
    layer = Layer(0, job.name, run, inputs, None, parameters, bytes_of(state), [], False, job.device)
    return BuiltStage(0, layers, [StageLayer(job.name, run)], parameters, state), layer


def builder_of_stages(
    job: Job, settings: Settings, layers: int
) -> Callable[[int, int], tuple[BuiltStage, Layer]]:
    if job.module is not None:
        return lambda first, last: module_stage(job, settings, layers)
    chain: Chain = build_chain(job, settings)

    def build(first: int, last: int) -> tuple[BuiltStage, Layer]:
        stage = build_stage(job, chain, Builder(settings, job.device), first, last)
        return stage, whole_of(job, chain, stage)

    return build


def record_memory(
    job: Job, profile: Any, ranks: int, progress: Progress = no_progress
) -> list[Recording | None]:
    """Of each of this many ranks, cut as timeline.ranks_of() cuts them; None: its layers do not fit into this
    machine's memory, or the model is a graph: of layers, which is not recorded, or a module, which is
    recorded as one rank only."""
    cuts, settings = cuts_of(profile, ranks), read_settings(job.config, job.optimizer)
    if len(cuts) > 1 if job.module is not None else has_branches(job.layers):
        return [None] * len(cuts)
    recordings: list[Recording | None] = []
    events = _profiler.MemoryLog()
    with torch.enable_grad(), counted_memory(job.device):
        build = builder_of_stages(job, settings, len(profile.layers))
        for number, (first, last) in enumerate(cuts, start=1):
            fits = needed(profile.layers[first:last]) <= job.device.free_bytes()
            recordings.append(record_stage(*build(first, last), events) if fits else None)
            progress("memory of a micro-batch", number, len(cuts))
    return recordings
