"""A profile in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: one micro-batch, rank by rank, and who holds
the memory of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ostinato.profile.timeline import LayerRun, Rank, Slice, ranks_of

TRACKS = ("layers", "operators")


def complete(rank: int, track: int, part: Slice, category: str, args: dict) -> dict:
    """Times are microseconds in this format."""
    times = {"ts": part.start / 1e3, "dur": part.time / 1e3}
    return {"ph": "X", "pid": rank, "tid": track, "name": part.name, "cat": category, **times, "args": args}


def memory(rank: Rank, run: LayerRun) -> Iterator[dict]:
    """By owner: at the layer's peak from when it starts, and what is left when it ends."""
    counter = {"ph": "C", "pid": rank.number, "name": "memory"}
    yield {**counter, "ts": run.slice.start / 1e3, "args": dict(rank.held_during(run))}
    after = dict([*rank.static, *run.held]) or {"none": 0}
    yield {**counter, "ts": (run.slice.start + run.slice.time) / 1e3, "args": after}


def events_of(profile: Any, rank: Rank) -> Iterator[dict]:
    name = f"rank {rank.number}: {profile.model} on {profile.device_name}"
    yield {"ph": "M", "pid": rank.number, "name": "process_name", "args": {"name": name}}
    for number, track in enumerate(TRACKS):
        yield {"ph": "M", "pid": rank.number, "tid": number, "name": "thread_name", "args": {"name": track}}
    for run in rank.runs:
        about = {"layer": run.row.index, "phase": run.phase, "kept": run.row.kept}
        yield complete(rank.number, 0, run.slice, run.phase, about)
        for part in run.operators:
            yield complete(rank.number, 1, part, run.phase, {"layer": run.row.index, "calls": part.calls})
        yield from memory(rank, run)


def perfetto(profile: Any, ranks: int = 1) -> str:
    events = [event for rank in ranks_of(profile, ranks) for event in events_of(profile, rank)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
