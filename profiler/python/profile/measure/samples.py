# SPDX-License-Identifier: Apache-2.0
"""The stopwatch of the profiler: one call, its time and its memory; how often it is made; and what comes out
of all of them.

    with counted_memory(device), quiet_collector():
        for repeat in rounds(warm_up=3, repeats=20):
            result, sample = measure(device, "what NVTX shows", lambda: layer(inputs))
            if repeat >= 0:
                samples.forward.append(sample)
    samples.spread("forward").median      # ns

`device` is one of machine/device.py: its clock, and what its allocator counts.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ostinato import _profiler

NOTHING = nullcontext()
Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


def no_progress(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


@dataclass
class Sample:
    time: int  # ns
    kept: int  # bytes that are live after it and were not before
    peak: int  # largest number of bytes above those before it
    computed: int = 0  # ns of it that this thread wanted a core


@dataclass
class Samples:
    """Of one layer, over the repeats."""

    forward: list[Sample] = field(default_factory=list)
    backward: list[Sample] = field(default_factory=list)
    input_half: list[Sample] = field(default_factory=list)
    weight_half: list[Sample] = field(default_factory=list)

    def spread(self, which: str) -> Any:
        """Median and quartiles of the times."""
        return _profiler.spread_of([sample.time for sample in getattr(self, which)])


def measure(
    device: Any, name: str, function: Callable[[], Any], around: AbstractContextManager = NOTHING
) -> tuple[Any, Sample]:
    """The function's result and cost. `name` is the range's in NVTX tools; `around` is entered for the call
    alone: a range of the device's timer must not hold the host's own time before it."""
    device.synchronize()
    before = device.live_bytes()
    device.reset_peak()
    with _profiler.Range(name), around:
        worked, start = device.worked(), device.mark()
        result = function()
        end, computed = device.mark(), device.worked() - worked
    time = device.between(start, end)
    return result, Sample(time, device.live_bytes() - before, device.peak_bytes() - before, computed)


def computing(samples: Iterable[Samples]) -> int:
    """Millionths of the time of forwards and backwards in which their thread wanted a core; it waits, sleeps
    or reads in the rest. 0: nothing was measured."""
    every = [sample for of_layer in samples for sample in (*of_layer.forward, *of_layer.backward)]
    time = sum(sample.time for sample in every)
    return min(10**6, sum(sample.computed for sample in every) * 10**6 // time) if time else 0


def average(samples: Iterable[Samples]) -> int:
    """Millionths of their medians that forwards and backwards take on average; what takes more than twice its
    median was interrupted, and counts as twice. 0: nothing was measured."""
    means, medians = 0.0, 0.0
    for of_kind in (
        [sample.time for sample in kind]
        for of_layer in samples
        for kind in (of_layer.forward, of_layer.backward)
        if kind
    ):
        median = statistics.median(of_kind)
        means, medians = means + statistics.fmean(min(time, 2 * median) for time in of_kind), medians + median
    return round(means / medians * 10**6) if medians else 0


def rounds(warm_up: int, repeats: int) -> range:
    """The numbers of all rounds. A negative one warms up, and does not count."""
    return range(-warm_up, repeats)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection inside a measurement: it would give back memory that is not the layer's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def counted_memory(device: Any) -> Iterator[None]:
    """Memory is counted; what exists already is kept out of garbage collections, which makes those between
    measurements quick."""
    gc.collect()
    kept_out = gc.get_freeze_count() > 0  # by the script, which unfreeze() would undo
    if not kept_out:
        gc.freeze()
    try:
        with device.counted_memory():
            yield
    finally:
        if not kept_out:
            gc.unfreeze()
