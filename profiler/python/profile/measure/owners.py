# SPDX-License-Identifier: Apache-2.0
"""Who holds memory: every block that the allocator hands out has one owner.

That is what was there before (parameters, gradients, what the rank received), the layer whose forward
allocated it and left it for later, or workspace: freed by the same forward, or allocated by the backward. The
log (profiler/memory/memory_log.h) has a fixed size; a recording that lost events says so in `dropped`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato import _profiler

PARAMETERS, GRADIENTS, RECEIVED, WORKSPACE = "parameters", "gradients", "received", "workspace"
OPTIMIZER = "optimizer state"
FORWARD, BACKWARD = "forward", "backward"
END = 1 << 62  # later than every event
Owned = dict[int, tuple[str, int]]  # by address: the owner of a block, and its bytes


@dataclass
class Span:
    """A layer's forward, or the backward of the whole rank (its name is empty). Nanoseconds of the steady
    clock."""

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


@dataclass
class HeldBlock:
    owner: str  # empty: not known yet
    bytes: int
    allocated: int = 0
    freed: int | None = None  # None: it was still there at the end


def owner_of(block: HeldBlock, spans: Sequence[Span]) -> str:
    """Of a block that was allocated while a micro-batch ran."""
    for span in spans[:-1]:
        if span.start <= block.allocated <= span.end:
            return span.name if block.freed is None or block.freed > span.end else WORKSPACE
    return WORKSPACE


def attribute(
    events: Iterable[tuple[int, int, int, int]],
    spans: Sequence[Span],
    known: Owned,
    noted: Iterable[tuple[int, Owned]] = (),
) -> list[Change]:
    """`events`: of a MemoryLog. `known`: what was there before it started; older memory beyond that has no
    owner on this rank. `noted`: (when, what an owner was seen to hold then), in order; a block belongs to the
    first one."""
    live = {address: HeldBlock(*held) for address, held in known.items()}
    steps: list[tuple[int, HeldBlock, int]] = []
    notes = list(noted)
    for at, address, change, _ in [*events, (END, 0, 0, 0)]:
        while notes and notes[0][0] <= at:
            for place, (owner, _) in notes.pop(0)[1].items():
                if place in live and not live[place].owner:
                    live[place].owner = owner
        if change > 0:
            block = live[address] = HeldBlock("", change, at)
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


def held_in(known: Owned) -> dict[str, int]:
    held: dict[str, int] = {}
    for owner, size in known.values():
        held[owner] = held.get(owner, 0) + size
    return held


class Log:
    """What the allocator of a device hands out and takes back while the `with` block runs, and the owners of
    it.

    log = Log(device, known)
    with log:
        ...                               # spans are timed
    recording = log.recording(first, last, spans)
    """

    def __init__(self, device: Any, known: Owned, events: Any = None):
        """`known`: what is there before the block. `events`: a MemoryLog that serves several blocks, one
        after the other."""
        self._device, self._known, self._log = device, known, events or _profiler.MemoryLog()
        self._before = self._above = 0

    def __enter__(self) -> Log:
        self._device.synchronize()
        self._before = self._device.live_bytes()
        self._device.reset_peak()
        self._log.start(self._device.place.type != "cpu")
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self._device.synchronize()
        finally:
            self._log.stop()
        self._above = self._device.peak_bytes() - self._before

    def recording(
        self, first: int, last: int, spans: list[Span], noted: Iterable[tuple[int, Owned]] = ()
    ) -> Recording:
        """Of layers [first, last). `spans` and `noted`: as attribute() takes them."""
        held = held_in(self._known)
        changes = attribute(self._log.events, spans, self._known, noted)
        return Recording(
            first, last, held, changes, spans, sum(held.values()) + self._above, self._log.dropped
        )
