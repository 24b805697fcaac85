"""A profile in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: one micro-batch, and who holds its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ostinato.profile.timeline import LayerRun, Slice, runs_of

TRACKS = ("layers", "operators")


def complete(track: int, part: Slice, category: str, args: dict) -> dict:
    """Times are microseconds in this format."""
    times = {"ts": part.start / 1e3, "dur": part.time / 1e3}
    return {"ph": "X", "pid": 0, "tid": track, "name": part.name, "cat": category, **times, "args": args}


def memory(run: LayerRun) -> Iterator[dict]:
    """What is kept after the layer, by owner, and its peak while it runs."""
    held = sum(size for _, size in run.held)
    kept_inside = run.row.kept if run.phase == "backward" else 0
    peak = {"name": "peak bytes", "ts": run.slice.start / 1e3, "args": {"bytes": held + kept_inside + run.workspace}}
    kept = {"name": "kept bytes", "ts": (run.slice.start + run.slice.time) / 1e3, "args": dict(run.held) or {"none": 0}}
    for event in (peak, kept):
        yield {"ph": "C", "pid": 0, **event}


def events(profile: Any) -> Iterator[dict]:
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"{profile.model} on {profile.device_name}"}}
    for number, name in enumerate(TRACKS):
        yield {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": name}}
    for run in runs_of(profile):
        yield complete(0, run.slice, run.phase, {"layer": run.row.index, "phase": run.phase, "kept": run.row.kept})
        for part in run.operators:
            yield complete(1, part, run.phase, {"layer": run.row.index, "calls": part.calls})
        yield from memory(run)


def perfetto(profile: Any) -> str:
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events(profile))}) + "\n"
