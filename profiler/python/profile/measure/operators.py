# SPDX-License-Identifier: Apache-2.0
"""Operators of a layer, and whether all of them were seen.

Operators are recorded in separate runs, so that the recorder's cost is not in the layer's time. In a further
run operators are both recorded and counted by a TorchDispatchMode, which knows nothing of the recorder: what
it saw and the recorder did not is lost.

An accelerator's operators are timed by the device: by CUPTI, or by its events where CUPTI cannot be had. Each
layer has a session of the timer for itself; an operator's time is what the device worked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from ostinato import _profiler
from ostinato.errors import Status, counted
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.passes import backward, forward
from ostinato.profile.measure.samples import Progress, no_progress, quiet_collector
from ostinato.profile.model.layer import Layer

EVENTS = 1 << 15  # that the recorder keeps of one thread ...
MOST_EVENTS = 1 << 20  # ... and at most, for a layer of many operators: 1.3 GB for all threads
BETWEEN = 64  # events around a pass: inputs are copied, gradients made
# Passes: the first ones touch fresh memory, which can take longer than the operator. A recorder that has room for
# them has it for count(), too.
WARM_UP = 3


PHASES = ("forward", "backward")
# Of saved tensors: torch enters it below the point where operators are recorded.
UNRECORDED = {"aten::detach"}


class LaunchCounter(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls):
        """What a layer compiles itself, it compiles as without this mode: else it would stay in eager mode."""
        return True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name not in UNRECORDED:
            self.counts[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


@dataclass
class Operators:
    """Rows of layers, and what was counted for them (profile.h, Completeness)."""

    rows: list[Any] = field(default_factory=list)
    expected: int = 0
    seen: int = 0
    dropped: int = 0
    unfinished: int = 0
    out_of_range: int = 0
    too_long: list[str] = field(default_factory=list)  # layers of which no recorder holds a pass
    losses: Any = field(default_factory=_profiler.Losses)  # of the device's timer, in all its sessions
    timer: str = "cpu"  # as the profile says it
    timer_note: str = ""  # why that is not CUPTI

    def add_counts(self, recorder: Any) -> None:
        self.dropped += recorder.dropped
        self.unfinished += recorder.unfinished
        self.out_of_range += recorder.out_of_range

    def why_incomplete(self) -> str:
        """In words; empty: nothing is missing."""
        reasons = {
            f"{self.expected - self.seen} of {counted(self.expected, 'operator')} were not recorded": self.expected
            - self.seen,
            f"{counted(self.dropped, 'operator')} did not fit into the buffers{self._of_whom()}": self.dropped,
            f"{counted(self.unfinished, 'operator')} did not end": self.unfinished,
            f"{self.out_of_range} backward nodes belong to another layer": self.out_of_range,
        }
        lost = self.losses.completeness().reason
        return "; ".join(filter(None, [*(text for text, count in reasons.items() if count), lost]))

    def _of_whom(self) -> str:
        if not self.too_long:
            return ""
        return (
            f", which hold {MOST_EVENTS} of a thread: measuring again does not help, but cutting layer "
            f"{', '.join(self.too_long)} into several does"
        )

    def completeness(self) -> Any:
        """As the profile states it: operators, and the launches that the device's timer counted."""
        state = self.losses.completeness()
        state.reason = self.why_incomplete()
        state.complete = not state.reason
        state.expected += self.expected
        state.seen += self.seen
        state.dropped += self.dropped + self.unfinished
        state.out_of_range += self.out_of_range
        return state


@contextmanager
def recorded_pass(recorder: Any, layer: Layer, phase: str) -> Iterator[None]:
    recorder.begin_pass(layer.index, phase)
    try:
        yield
    finally:
        recorder.end_pass()


@contextmanager
def counted_pass(recorder: Any, layer: Layer, phase: str, counter: LaunchCounter) -> Iterator[None]:
    with recorded_pass(recorder, layer, phase), counter:
        yield


@contextmanager
def recording(recorder: Any, **options: Any) -> Iterator[None]:
    """The recorder, emptied and then running."""
    recorder.clear()
    with quiet_collector():
        recorder.start(**options)
        try:
            yield
        finally:
            recorder.stop()


def record(layer: Layer, recorder: Any, passes: int, timer: Any = None, flops: bool = False) -> None:
    with recording(recorder, timer=timer, flops=flops):
        for number in range(passes):
            there, back = (recorded_pass(recorder, layer, phase) for phase in PHASES)
            started, _ = forward(layer, f"{layer.name} F record {number}", there)
            backward(layer, started, f"{layer.name} B record {number}", back)
            if timer is not None:
                layer.device.synchronize()
                timer.flush()


@dataclass
class Room:
    """A recorder, which is made again where a layer needs a larger one."""

    events: int
    recorder: Any = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = _profiler.OperatorRecorder(events_per_thread=self.events)

    def warm_up(self, layer: Layer, repeats: int) -> int:
        """How many of the `repeats` passes fit; at least one."""
        record(layer, self.recorder, WARM_UP)
        needed = min(1 << (self.events + self.recorder.dropped - 1).bit_length(), MOST_EVENTS)
        if needed > self.events:
            larger = Room(needed)
            record(layer, larger.recorder, WARM_UP)
            if larger.recorder.dropped < self.recorder.dropped:  # else it lacked room for threads, say
                self.events, self.recorder = larger.events, larger.recorder
        if self.recorder.dropped:
            return 1
        calls = sum(row.calls for row in self.recorder.rows())
        return min(repeats, max(WARM_UP, self.events // (calls + BETWEEN)))


def flops_of(layer: Layer, recorder: Any) -> dict[tuple[str, str], int]:
    """By phase and operator, those that have any. Takes a separate run, as torch collects all calls'
    arguments for it."""
    record(layer, recorder, 1, flops=True)
    return {(row.phase, row.name): row.flops for row in recorder.rows() if row.flops is not None}


def with_flops(rows: list[Any], flops: dict[tuple[str, str], int]) -> list[Any]:
    for row in rows:
        row.flops = flops.get((row.phase, row.name))
    return rows


def count(layer: Layer, recorder: Any) -> tuple[int, int]:
    """Operators that were counted in one forward and backward, and how many of them were recorded."""
    counters = {phase: LaunchCounter() for phase in PHASES}
    with recording(recorder):
        there, back = (counted_pass(recorder, layer, phase, counter) for phase, counter in counters.items())
        started, _ = forward(layer, f"{layer.name} F count", there)
        backward(layer, started, f"{layer.name} B count", back)
    calls = {(row.phase, row.name): row.calls for row in recorder.rows()}
    expected = seen = 0
    for phase, counter in counters.items():
        for name, times in counter.counts.items():
            expected += times
            # The counter calls every operator that it counts once more, and that call is recorded too.
            seen += min(times, max(0, calls.get((phase, name), 0) - times))
    return expected, seen


def choose_timer(layer: Layer) -> tuple[Any, str]:
    """CUPTI, or device events and why it is not CUPTI. torch.profiler takes CUPTI's records over when it runs."""
    running = "torch.profiler" if torch.autograd._profiler_enabled() else ""
    try:
        return _profiler.choose_timer(str(layer.device.place), running)
    except _profiler.NoTimer as error:
        raise ProfileError(str(error), Status.MISSING) from error


def session(layer: Layer, recorder: Any, passes: int) -> tuple[Any, str, str]:
    """Passes that the device times: its times, what told them, and why that is not CUPTI."""
    layer.device.synchronize()  # what runs already is not the session's
    timer, note = choose_timer(layer)
    record(layer, recorder, passes, timer)
    return timer.stop(), timer.name, note


def add_operators(layer: Layer, room: Room, repeats: int, into: Operators) -> None:
    """Rows and counts of one layer, over up to `repeats` passes. The recorder's earlier events are forgotten."""
    passes = room.warm_up(layer, repeats)
    recorder = room.recorder
    flops = flops_of(layer, recorder)
    if layer.device.own_clock:
        times, into.timer, into.timer_note = session(layer, recorder, passes)
        rows = recorder.rows(times)
        into.losses += times.losses
    else:
        record(layer, recorder, passes)
        rows = recorder.rows()
    into.rows += with_flops(rows, flops)
    into.add_counts(recorder)
    expected, seen = count(layer, recorder)
    into.expected += expected
    into.seen += seen
    if recorder.dropped:
        into.dropped += recorder.dropped
        if room.events >= MOST_EVENTS:
            into.too_long.append(layer.name)


def record_operators(layers: Sequence[Layer], repeats: int, progress: Progress = no_progress) -> Operators:
    """Of all layers, one after the other."""
    into, room = Operators(), Room(EVENTS)
    if layers[0].device.own_clock:  # in its first session CUPTI instruments what is loaded, for seconds
        session(layers[0], room.recorder, 1)
    for number, layer in enumerate(layers, start=1):
        add_operators(layer, room, repeats, into)
        progress("operators", number, len(layers))
    return into
