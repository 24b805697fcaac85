# SPDX-License-Identifier: Apache-2.0
"""Layers and operators timed by the device itself, in the same runs.

Each layer has a session of the device's timer for itself: its ranges (operator, layer, kind, repeat) are
opened by the recorder on whichever thread launches the work. A layer's time is the span from its first
activity on the device to its last, gaps in which the device waits for a launch included; an operator's is
what the device worked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ostinato import _profiler
from ostinato.errors import Status
from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.operators import (
    Operators,
    count,
    flops_of,
    recorded_pass,
    recording,
    with_flops,
)
from ostinato.profile.measure.passes import repeat_once
from ostinato.profile.measure.samples import Sample, Samples, rounds
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer

ROUNDS = {"forward": "forward", "backward": "backward", "backward_input": "input_half",
          "backward_weight": "weight_half"}  # fmt: skip


def torch_profile_runs() -> str:
    """torch.profiler takes CUPTI's records over when it runs."""
    return "torch.profiler" if torch.autograd._profiler_enabled() else ""


def choose_timer(layer: Layer) -> tuple[Any, str]:
    """CUPTI, or device events and why it is not CUPTI."""
    place, running = str(layer.device.place), torch_profile_runs()
    try:
        return _profiler.choose_timer(place, running)
    except _profiler.NoTimer as error:
        raise ProfileError(str(error), Status.MISSING) from error


def passes_of(recorder: Any, layer: Layer, repeat: int) -> Callable[[str], AbstractContextManager]:
    return lambda phase: recorded_pass(recorder, layer, phase, repeat)


def repeats_that_fit(recorder: Any, layer: Layer, repeats: int, room: int) -> int:
    """At least one, and no more than the recorder's buffer holds, by what it records of one."""
    with recording(recorder):
        repeat_once(layer, -1, None, passes=passes_of(recorder, layer, 0))
    return max(1, min(repeats, room // max(1, recorder.recorded)))


def timed(samples: Samples, times: Any) -> Samples:
    """The same samples with the device's times. A call that launched nothing took no time."""
    spans = {(kind, repeat): span for _, kind, repeat, span, _ in times.layers}

    def of(kind: str, measured: list[Sample]) -> list[Sample]:
        return [replace(sample, time=spans.get((kind, n), 0)) for n, sample in enumerate(measured)]

    return Samples(**{field: of(kind, getattr(samples, field)) for kind, field in ROUNDS.items()})


def add_losses(losses: Any, into: Operators) -> None:
    """Of all sessions together: a layer that launches nothing is no loss."""
    state = losses.completeness()
    into.expected += state.expected
    into.seen += state.seen
    into.dropped += state.dropped
    into.out_of_range += state.out_of_range
    into.lost = state.reason


@dataclass
class Session:
    """What one session of the device's timer measured of one layer. `timer` and `note` are the profile's."""

    samples: Samples
    times: Any
    timer: str
    note: str


def session(layer: Layer, recorder: Any, repeats: int, split: bool = True) -> Session:
    timer, note = choose_timer(layer)
    samples = Samples()
    with recording(recorder, timer=timer):
        for repeat in range(repeats):
            repeat_once(layer, repeat, samples, split, passes_of(recorder, layer, repeat))
            layer.device.synchronize()
            timer.flush()
    times = timer.stop()
    return Session(timed(samples, times), times, timer.name, note)


class DeviceTimes:
    """Of a whole chain. `timer` and `note` are the profile's."""

    def __init__(self, job: Job, recorder: Any, room: int):
        self.job, self.recorder, self.room = job, recorder, room
        self.operators = Operators()
        self.samples: list[Any] = []
        self.losses = _profiler.Losses()
        self.timer = self.note = ""

    def add(self, layer: Layer) -> None:
        for repeat in rounds(self.job.warm_up, 0):
            repeat_once(layer, repeat, None)
        flops = flops_of(layer, self.recorder)
        repeats = repeats_that_fit(self.recorder, layer, self.job.repeats, self.room)
        measured = session(layer, self.recorder, repeats)
        self.timer, self.note = measured.timer, measured.note
        self.samples.append(measured.samples)
        self.operators.rows += with_flops(self.recorder.rows(measured.times), flops)
        self.operators.add_counts(self.recorder)
        self.losses += measured.times.losses
        expected, seen = count(layer, self.recorder)
        self.operators.expected += expected
        self.operators.seen += seen


def warm_up_timer(chain: Chain, recorder: Any) -> None:
    """During its first session CUPTI instruments what is loaded, for seconds: nothing of that session is kept."""
    layer = chain.layers[0]
    timer, _ = choose_timer(layer)
    with recording(recorder, timer=timer):
        repeat_once(layer, -1, None)
        layer.device.synchronize()
    timer.stop()


def measure_whole(layer: Layer, job: Job, recorder: Any, room: int) -> Samples:
    """Forward and whole backward of a layer or stage, by the device's clock."""
    for repeat in rounds(job.warm_up, 0):
        repeat_once(layer, repeat, None, split=False)
    return session(layer, recorder, repeats_that_fit(recorder, layer, job.repeats, room), split=False).samples


def measure_on_device(job: Job, chain: Chain, recorder: Any, room: int, progress: Callable) -> DeviceTimes:
    """All layers, one after another. `room`: events that the recorder keeps per thread."""
    warm_up_timer(chain, recorder)
    result = DeviceTimes(job, recorder, room)
    for number, layer in enumerate(chain.layers, start=1):
        result.add(layer)
        progress("layers and operators", number, len(chain.layers))
    add_losses(result.losses, result.operators)
    return result
