# SPDX-License-Identifier: Apache-2.0
"""Who holds this rank's memory over one training step, written to the folder `"memory"` of the section.

It records the third step: the first makes the optimizer's state, the second warms caches.
Each block that the allocator hands out has one owner (ostinato/profile/measure/owners.py): `parameters`,
`gradients` and `optimizer state` by what is seen to hold it before the optimizer steps and at the end, a
stage whose forward allocated it and left it for its backward, else `workspace` (buffers of transfers
too). rank-N.json is a trace for ui.perfetto.dev and chrome://tracing.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from ostinato.files import Diagnostic
from ostinato.profile.machine.device import device_at
from ostinato.profile.measure.owners import (
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    Log,
    Owned,
    Recording,
    Span,
    storages,
)
from ostinato.trace_events import TraceEvents

from ostinato import _profiler

from ..upstream import Engine
from .trace import keep_peak

RECORDED = 3  # step


def optimizer_tensors(optimizer) -> Iterator[torch.Tensor]:
    """State and, where it trains copies, those: of the optimizer itself, or of the one that DeepSpeed has
    wrapped."""
    while hasattr(optimizer, "optimizer") and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    for group in getattr(optimizer, "param_groups", ()):
        yield from (p for p in group["params"] if isinstance(p, torch.Tensor))
    for state in getattr(optimizer, "state", {}).values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class StepMemory:
    """Of one engine."""

    def __init__(self, folder: Path, rank: int, engine: Engine):
        self._file, self._rank, self._engine = Diagnostic(folder / f"rank-{rank}.json"), rank, engine
        self._recorded = False  # whether the current step is
        self._spans: list[Span] = []
        self._noted: list[tuple[int, Owned]] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """`number`: from 1."""
        if number != RECORDED:
            yield
            return
        device = device_at(torch.device(self._engine.device))
        log = Log(device, self._owned())
        keep_peak()
        with device.counted_memory():
            start, self._recorded = device.now(), True
            with log:
                yield
            end = device.now()
        self.note()
        recording = log.recording(0, 0, [*self._spans, Span("", start, end)], self._noted)
        self._file.write(json.dumps(self._trace(recording, start)))
        self._recorded = False

    @contextmanager
    def forward(self, stage: str) -> Iterator[None]:
        """Around each forward of a stage."""
        start = _profiler.now()
        try:
            yield
        finally:
            if self._recorded:
                self._spans.append(Span(stage, start, _profiler.now()))

    def note(self) -> None:
        """Who owns what now: called when gradients are there, before the optimizer takes them."""
        if self._recorded:
            self._noted.append((_profiler.now(), self._owned()))

    def _owned(self) -> Owned:
        module, tied = self._engine.module, self._engine._ostinato.tied_sums
        gradients: Iterable = (parameter.grad for parameter in module.parameters())
        owned = storages(GRADIENTS, [*gradients, *(tied.held() if tied else ())]) | storages(
            OPTIMIZER, optimizer_tensors(self._engine.optimizer)
        )
        return owned | storages(PARAMETERS, [*module.parameters(), *module.buffers()])

    def _trace(self, recording: Recording, start: int) -> dict:
        events = TraceEvents()
        owners = sorted({*recording.held, *(change.owner for change in recording.changes)})
        events.process(self._rank, f"rank {self._rank}")
        for span in recording.spans[:-1]:
            events.slice(
                self._rank,
                0,
                span.name,
                start=span.start - start,
                time=span.end - span.start,
                category="forward",
            )
        times = [0, *(change.at - start for change in recording.changes)]
        for at, held in zip(times, recording.over_time(), strict=True):
            events.counter(self._rank, "memory", at, dict.fromkeys(owners, 0) | held)
        return events.to_dict(
            step=RECORDED,
            peak=recording.peak(),
            counted_peak=recording.counted_peak,
            dropped=recording.dropped,
        )
