"""A profile in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: one micro-batch, rank by rank, and who holds
the memory of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ostinato.profile.memory import Recording
from ostinato.profile.timeline import Rank, Slice, ranks_of

TRACKS = ("layers", "operators")


def complete(rank: int, track: int, part: Slice, category: str, args: dict) -> dict:
    """Times are microseconds in this format."""
    times = {"ts": part.start / 1e3, "dur": part.time / 1e3}
    return {"ph": "X", "pid": rank, "tid": track, "name": part.name, "cat": category, **times, "args": args}


def memory(rank: Rank) -> Iterator[dict]:
    """By owner, from when each moment starts; what is there when the micro-batch ends, last."""
    counter = {"ph": "C", "pid": rank.number, "name": "memory"}
    moments = rank.moments()
    owners = {owner for moment in moments for owner, _ in moment.held} or {"none"}
    for moment in moments:  # all owners each time: a viewer keeps the last value of one that is left out
        yield {**counter, "ts": moment.start / 1e3, "args": dict.fromkeys(sorted(owners), 0) | dict(moment.held)}


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
    yield from memory(rank)


def perfetto(profile: Any, ranks: int = 1, recordings: Sequence[Recording | None] = ()) -> str:
    events = [event for rank in ranks_of(profile, ranks, recordings) for event in events_of(profile, rank)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
