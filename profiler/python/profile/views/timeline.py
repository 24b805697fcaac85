# SPDX-License-Identifier: Apache-2.0
"""One micro-batch as the profile has it: every layer forwards, then backwards, with what is held and by whom.

Layers stand one after another with their median times, as on one device. Inside a layer its operators stand
by falling self time, for a profile does not keep their order; what they leave of the layer's time is the
launching of operators. Memory is what was recorded of each rank (measure/rank_memory.py), put to where the
rank's forward and backward stand; without a recording, what the rows say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.profile.measure.owners import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    WORKSPACE,
    Recording,
)
from ostinato.profile.model.stage import cuts_of

PHASES = (FORWARD, BACKWARD)
MOMENTS = 240  # of a recording that are shown, at most; the highest is always among them


@dataclass
class Slice:
    name: str
    start: int  # ns from the start of the micro-batch
    time: int
    calls: int = 1


@dataclass
class LayerRun:
    row: Any  # of the profile's layers
    phase: str
    slice: Slice
    operators: list[Slice]
    # Bytes kept by each layer when it ends, those that keep something, in model order.
    held: list[tuple[str, int]]
    workspace: int  # peak bytes inside it above what was held before and what it keeps


def operators_inside(profile: Any, row: Any, phase: str, outer: Slice) -> list[Slice]:
    """By falling self time, cut off at the layer's end: operators are measured in separate runs."""
    layer = row.index if row.same_as < 0 else row.same_as
    rows = [o for o in profile.operators if o.layer == layer and o.phase == phase and o.self_time.median > 0]
    at, end, slices = outer.start, outer.start + outer.time, []
    for operator in sorted(rows, key=lambda o: (-o.self_time.median, o.name)):
        time = min(operator.self_time.median, end - at)
        if time <= 0:
            break
        slices.append(Slice(operator.name, at, time, operator.calls))
        at += time
    return slices


def runs_of(profile: Any) -> Iterator[LayerRun]:
    now, held = 0, {}
    for phase in PHASES:
        rows = profile.layers if phase == "forward" else reversed(profile.layers)
        for row in rows:
            outer = Slice(row.name, now, getattr(row, phase).median)
            now += outer.time
            if phase == "forward" and row.kept:
                held[row.name] = row.kept
            elif phase == "backward":
                held.pop(row.name, None)
            workspace = getattr(row, f"{phase}_workspace")
            operators = operators_inside(profile, row, phase, outer)
            yield LayerRun(row, phase, outer, operators, list(held.items()), workspace)


@dataclass
class Moment:
    """How a rank's memory is held by its owners, from `start` for `time`."""

    start: int  # ns from the start of the micro-batch
    time: int
    held: list[tuple[str, int]]  # in the order in which they are drawn, from the bottom
    when: str

    def total(self) -> int:
        return sum(size for _, size in self.held)


@dataclass
class RankTimeline:
    """What one rank runs and holds if the layers are cut into stages of about equal time."""

    number: int
    rows: list[Any]  # its layers
    static: list[tuple[str, int]]  # bytes that are always in use, by owner
    runs: list[LayerRun]  # of its layers; `held` is what they keep
    total: int  # ns of the whole micro-batch
    recording: Recording | None = None

    def held_always(self) -> int:
        return sum(size for _, size in self.static)

    def held_during(self, run: LayerRun) -> list[tuple[str, int]]:
        """Everything by owner while that layer runs, at its peak."""
        inside = [(run.row.name, run.row.kept)] if run.phase == "backward" and run.row.kept else []
        return [*self.static, *run.held, *inside, (WORKSPACE, run.workspace)]

    def moments(self) -> list[Moment]:
        return list(thinned(recorded(self)) if self.recording else from_rows(self))

    def peak(self) -> int:
        return max((moment.total() for moment in self.moments()), default=self.held_always())


def from_rows(rank: RankTimeline) -> Iterator[Moment]:
    """A layer at its peak, and what waits until the rank's next layer."""
    ends = [run.slice.start for run in rank.runs[1:]] + [rank.total]
    for run, end in zip(rank.runs, ends, strict=True):
        start, stop = run.slice.start, run.slice.start + run.slice.time
        yield Moment(start, stop - start, rank.held_during(run), f"during the {run.phase} of {run.row.name}")
        yield Moment(stop, end - stop, [*rank.static, *run.held], f"after the {run.phase} of {run.row.name}")


def place_of(rank: RankTimeline, at: int) -> int:
    """A time of the recording, on the micro-batch's axis: forward and backward are stretched to the times of
    the rows."""
    assert rank.recording is not None
    place = 0
    for phase in PHASES:
        runs, (begin, end) = [run for run in rank.runs if run.phase == phase], rank.recording.phase(phase)
        if at < begin:
            break
        first, last = runs[0].slice.start, runs[-1].slice.start + runs[-1].slice.time
        place = first + (last - first) * min(at - begin, end - begin) // max(1, end - begin)
    return place


def not_recorded(rank: RankTimeline) -> dict[str, int]:
    """What no micro-batch allocates: the optimizer's state, and gradients in another precision than the
    parameters'."""
    assert rank.recording is not None
    computed, recording = dict(rank.static), rank.recording
    more = {
        GRADIENTS: computed.get(GRADIENTS, 0) - recording.held.get(GRADIENTS, 0),
        OPTIMIZER: computed.get(OPTIMIZER, 0),
    }
    return {owner: size for owner, size in more.items() if size > 0}


def recorded(rank: RankTimeline) -> Iterator[Moment]:
    """One for each change."""
    assert rank.recording is not None
    recording, more = rank.recording, not_recorded(rank)
    order = [PARAMETERS, GRADIENTS, OPTIMIZER, *(row.name for row in rank.rows)]
    places = {owner: place for place, owner in enumerate(order)}

    def by_owner(held: dict[str, int]) -> list[tuple[str, int]]:
        owners = sorted({*held, *more}, key=lambda owner: (places.get(owner, len(order)), owner))
        sizes = ((owner, held.get(owner, 0) + more.get(owner, 0)) for owner in owners)
        return [(owner, size) for owner, size in sizes if size]

    starts = [0, *(place_of(rank, change.at) for change in recording.changes)]
    whens = [
        "before its forward",
        *(
            f"when {c.owner} {'took' if c.bytes > 0 else 'gave back'} {abs(c.bytes)} B"
            for c in recording.changes
        ),
    ]
    for held, when, start, end in zip(
        recording.over_time(), whens, starts, [*starts[1:], rank.total], strict=True
    ):
        yield Moment(start, max(0, end - start), by_owner(held), when)


def thinned(moments: Iterator[Moment], most: int = MOMENTS) -> Iterator[Moment]:
    """Of each stretch of time, the moment with most memory in it, drawn over all of it."""
    every = list(moments)
    size = -(-len(every) // most) or 1
    for first in range(0, len(every), size):
        part = every[first : first + size]
        end = part[-1].start + part[-1].time
        yield replace(max(part, key=Moment.total), start=part[0].start, time=end - part[0].start)


STATIC = {PARAMETERS: "parameters", GRADIENTS: "gradients", OPTIMIZER: "optimizer_state"}


def ranks_of(profile: Any, stages: int, recordings: Sequence[Recording | None] = ()) -> list[RankTimeline]:
    """One micro-batch through this many ranks, by their profile: times of transfers are left out."""
    runs, ranks = list(runs_of(profile)), []
    total = max(1, sum(run.slice.time for run in runs))
    for number, (first, last) in enumerate(cuts_of(profile, stages)):
        rows = profile.layers[first:last]
        own = {row.name for row in rows}
        static = [(owner, sum(getattr(row, field) for row in rows)) for owner, field in STATIC.items()]
        here = [
            replace(run, held=[(name, size) for name, size in run.held if name in own])
            for run in runs
            if first <= run.row.index < last
        ]
        recording = recordings[number] if recordings else None
        ranks.append(
            RankTimeline(
                number, rows, [(owner, size) for owner, size in static if size], here, total, recording
            )
        )
    return ranks
