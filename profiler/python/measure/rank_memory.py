# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of a rank while a micro-batch runs: recorded from the allocator, not added up from rows.

    recordings = record_memory(job, profile, ranks=2)     # one a rank, whose layers are built anew, one rank after the other
    recordings[0].peak(), recordings[0].counted_peak      # bytes: what the owners hold at most, and what the allocator counted

Each block that the allocator hands out has one owner: what was there before (parameters, gradients, what the rank received), the
layer whose forward allocated it and left it for later, or workspace: freed by the same forward, or allocated by the backward.
The log (profiler/memory/memory_log.h) has a fixed size; a recording that lost events says so in `dropped`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.model.chain import Builder, Chain, build_chain, has_branches, moved, with_loss
from ostinato.profile.model.graph import arguments
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, prepare, roots_of
from ostinato.profile.measure.passes import quiet_collector, repeat_once
from ostinato.profile.run import Progress, counted_memory, no_progress
from ostinato.profile.settings import Settings, read_settings
from ostinato.profile.model.stage import Stage, Step, build_stage, cuts_of, whole_of
from ostinato.profile.model.tensors import bytes_of, tensors

PARAMETERS, GRADIENTS, RECEIVED, WORKSPACE = "parameters", "gradients", "received", "workspace"
OPTIMIZER = "optimizer state"
FORWARD, BACKWARD = "forward", "backward"
END = 1 << 62  # later than every event


@dataclass
class Span:
    """A layer's forward, or the backward of the whole rank (its name is empty). Nanoseconds of the steady clock."""

    name: str
    start: int
    end: int


@dataclass
class Change:
    at: int  # ns of the steady clock
    owner: str
    bytes: int  # < 0: freed


@dataclass
class Recording:
    """One rank's layers over one micro-batch."""

    first: int  # layer
    last: int  # the one after the rank's
    held: dict[str, int]  # by owner, before the first change
    changes: list[Change]  # in the order in which the allocator counted them
    spans: list[Span]  # forwards in order, then the backward
    counted_peak: int  # by the allocator: its peak less what it had at the start, and `held`
    dropped: int  # events that did not fit into the log

    def phase(self, name: str) -> tuple[int, int]:
        """When it began and ended."""
        spans = self.spans[:-1] if name == FORWARD else self.spans[-1:]
        return spans[0].start, spans[-1].end

    def peak(self) -> int:
        return sum(self.held.values()) + max(itertools.accumulate((c.bytes for c in self.changes), initial=0))

    def over_time(self) -> Iterator[dict[str, int]]:
        """By owner: before the first change, and after each. One dictionary, which changes."""
        held = dict(self.held)
        yield held
        for change in self.changes:
            held[change.owner] = held.get(change.owner, 0) + change.bytes
            yield held


def held_in(known: Owned) -> dict[str, int]:
    held: dict[str, int] = {}
    for owner, size in known.values():
        held[owner] = held.get(owner, 0) + size
    return held


@dataclass
class Block:
    owner: str  # empty: not known yet
    bytes: int
    allocated: int = 0
    freed: int | None = None  # None: it was still there at the end


def owner_of(block: Block, spans: Sequence[Span]) -> str:
    """Of a block that was allocated while a micro-batch ran."""
    for span in spans[:-1]:
        if span.start <= block.allocated <= span.end:
            return span.name if block.freed is None or block.freed > span.end else WORKSPACE
    return WORKSPACE


Owned = dict[int, tuple[str, int]]  # by address: the owner of a block, and its bytes


def attribute(
    events: Iterable[tuple[int, int, int, int]], spans: Sequence[Span], known: Owned, noted: Iterable[tuple[int, Owned]] = ()
) -> list[Change]:
    """`events`: of a MemoryLog. `known`: what was there before it started; what else was there is nobody's of this rank. `noted`:
    (when, what somebody was seen to own then), in order; a block belongs to the first who was."""
    live = {address: Block(*held) for address, held in known.items()}
    steps: list[tuple[int, Block, int]] = []
    notes = list(noted)
    for at, address, change, _ in [*events, (END, 0, 0, 0)]:
        while notes and notes[0][0] <= at:
            for place, (owner, _) in notes.pop(0)[1].items():
                if place in live and not live[place].owner:
                    live[place].owner = owner
        if change > 0:
            block = live[address] = Block("", change, at)
            steps.append((at, block, change))
        elif address in live:
            block = live.pop(address)
            block.freed = at
            steps.append((at, block, -block.bytes))
    return [Change(at, block.owner or owner_of(block, spans), size) for at, block, size in steps]


def storages(owner: str, values: Iterable[torch.Tensor | None]) -> Owned:
    """By address; memory that several tensors show counts once."""
    held = (tensor.untyped_storage() for tensor in values if tensor is not None)
    return {storage.data_ptr(): (owner, storage.nbytes()) for storage in held}


def run_forward(steps: Sequence[Step], value: Any, spans: list[Span]) -> Any:
    """The outputs. Nothing else is held: what no backward needs is freed when the next layer has run, as in training."""
    for step in steps:
        start = _profiler.now()
        value = step(value)
        spans.append(Span(step.name, start, _profiler.now()))
    return value


def run_backward(outputs: list[torch.Tensor], gradients: list[torch.Tensor], spans: list[Span]) -> None:
    start = _profiler.now()
    if outputs:
        torch.autograd.backward(outputs, gradients)
    spans.append(Span("", start, _profiler.now()))


def ones_for(layer: Layer) -> list[torch.Tensor]:
    """Gradients of its outputs, as the next rank would send them; runs it once, which also warms the allocator's caches up."""
    repeat_once(layer, -1, None, split=False)
    return [torch.ones_like(tensor) for tensor in roots_of(layer, layer.run(prepare(layer)[1]))]


def micro_batch(stage: Stage, layer: Layer, inputs: list[Any], gradients: list[torch.Tensor]) -> list[Span]:
    """Forwards and the backward; takes the inputs out of their list, so that they are freed when nothing needs them."""
    spans: list[Span] = []
    outputs = roots_of(layer, run_forward(stage.steps, inputs.pop(), spans))
    run_backward(outputs, gradients, spans)
    return spans


def record_stage(stage: Stage, layer: Layer, log: Any) -> Recording:
    """`layer`: the stage as a whole."""
    device, gradients = layer.device, ones_for(layer)
    with quiet_collector():
        inputs = [prepare(layer)[1]]
        known = storages(RECEIVED, [*tensors(inputs), *gradients])
        known |= storages(GRADIENTS, [parameter.grad for parameter in stage.parameters])
        known |= storages(PARAMETERS, stage.state)
        device.synchronize()
        before = device.live_bytes()
        device.reset_peak()
        log.start(device.place.type != "cpu")
        try:
            spans = micro_batch(stage, layer, inputs, gradients)
            device.synchronize()
        finally:
            log.stop()
        above = device.peak_bytes() - before
    held = held_in(known)
    changes = attribute(log.events, spans, known)
    return Recording(stage.first, stage.last, held, changes, spans, sum(held.values()) + above, log.dropped)


def needed(rows: Sequence[Any]) -> int:
    """Bytes that a micro-batch through these layers takes, by the profile."""
    workspace = max(max(row.forward_workspace, row.backward_workspace) for row in rows)
    return sum(row.parameters + row.gradients + row.kept for row in rows) + workspace


def module_stage(job: Job, settings: Settings, layers: int) -> tuple[Stage, Layer]:
    """A module that is profiled as a graph: its forward is one step here."""
    module = job.module.to(device=job.device.place, dtype=settings.dtype)
    inputs = moved(job.inputs, job.device)

    def run(values: Any) -> Any:
        positional, named = arguments(values)
        return module(*positional, **named)

    if job.loss_fn is not None:
        run = with_loss(run, job)
    parameters = [p for p in module.parameters() if p.requires_grad]
    state = [*module.parameters(), *module.buffers()]
    layer = Layer(0, job.name, run, inputs, None, parameters, bytes_of(state), [], False, job.device)
    return Stage(0, layers, [Step(job.name, run, False)], parameters, state), layer


def builder_of_stages(job: Job, settings: Settings, layers: int) -> Callable[[int, int], tuple[Stage, Layer]]:
    if job.module is not None:
        return lambda first, last: module_stage(job, settings, layers)
    chain: Chain = build_chain(job, settings)

    def build(first: int, last: int) -> tuple[Stage, Layer]:
        stage = build_stage(job, chain, Builder(settings, job.device), first, last)
        return stage, whole_of(job, chain, stage)

    return build


def record_memory(job: Job, profile: Any, ranks: int, progress: Progress = no_progress) -> list[Recording | None]:
    """Of each of so many ranks, cut as timeline.ranks_of() cuts them; None: its layers do not fit into this machine's memory, or
    the model is a graph: of layers, which is not recorded, or a module, which is recorded as one rank only."""
    cuts, settings = cuts_of(profile, ranks), read_settings(job.config, job.optimizer)
    if len(cuts) > 1 if job.module is not None else has_branches(job.layers):
        return [None] * len(cuts)
    recordings: list[Recording | None] = []
    log = _profiler.MemoryLog()
    with torch.enable_grad(), counted_memory(job.device):
        build = builder_of_stages(job, settings, len(profile.layers))
        for number, (first, last) in enumerate(cuts, start=1):
            fits = needed(profile.layers[first:last]) <= job.device.free_bytes()
            recordings.append(record_stage(*build(first, last), log) if fits else None)
            progress("memory of a micro-batch", number, len(cuts))
    return recordings
