"""One micro-batch as the profile has it: every layer forwards, then backwards, with what is held and by whom.

Layers stand one after another with their median times, as on one device. Inside a layer its operators stand by falling self
time, for a profile does not keep their order; what they leave of the layer's time is the launching of operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ostinato.profile.check import balanced

PHASES = ("forward", "backward")
WORKSPACE = "workspace"  # as an owner of memory


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
    held: list[tuple[str, int]]  # bytes kept by each layer when it ends, those that keep something, in model order
    workspace: int  # peak bytes inside it above what was held before and what it keeps


def operators_inside(profile: Any, row: Any, phase: str, outer: Slice) -> list[Slice]:
    """By falling self time, cut off at the layer's end: operators are measured in runs of their own."""
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
class Rank:
    """What one rank runs and holds where the layers are cut into stages of about equal time."""

    number: int
    rows: list[Any]  # its layers
    static: list[tuple[str, int]]  # bytes that are always in use, by owner
    runs: list[LayerRun]  # of its layers; `held` is what they keep

    def held_always(self) -> int:
        return sum(size for _, size in self.static)

    def held_during(self, run: LayerRun) -> list[tuple[str, int]]:
        """Everything by owner while that layer runs, at its peak."""
        inside = [(run.row.name, run.row.kept)] if run.phase == "backward" and run.row.kept else []
        return [*self.static, *run.held, *inside, (WORKSPACE, run.workspace)]

    def peak(self) -> int:
        return max((sum(size for _, size in self.held_during(run)) for run in self.runs), default=self.held_always())


STATIC = {"parameters": "parameters", "gradients": "gradients", "optimizer state": "optimizer_state"}


def ranks_of(profile: Any, stages: int) -> list[Rank]:
    """One micro-batch through so many ranks, by their profile: times of transfers are left out."""
    weights = [row.forward.median + row.backward.median for row in profile.layers]
    runs, ranks = list(runs_of(profile)), []
    for number, (first, last) in enumerate(balanced(weights, stages)):
        rows = profile.layers[first:last]
        own = {row.name for row in rows}
        static = [(owner, sum(getattr(row, field) for row in rows)) for owner, field in STATIC.items()]
        here = [
            replace(run, held=[(name, size) for name, size in run.held if name in own])
            for run in runs
            if first <= run.row.index < last
        ]
        ranks.append(Rank(number, rows, [(owner, size) for owner, size in static if size], here))
    return ranks
