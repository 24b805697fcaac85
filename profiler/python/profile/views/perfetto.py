# SPDX-License-Identifier: Apache-2.0
"""A profile in Chrome's trace format, for ui.perfetto.dev and chrome://tracing: one micro-batch, rank by
rank, and who holds the memory of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ostinato.profile.measure.owners import Recording
from ostinato.profile.views.timeline import RankTimeline, ranks_of
from ostinato.trace_events import TraceEvents

TRACKS = ("layers", "operators")


def add_memory(events: TraceEvents, rank: RankTimeline) -> None:
    """Bytes by owner, at the start of each moment, and last at the end of the micro-batch."""
    moments = rank.moments()
    owners = {owner for moment in moments for owner, _ in moment.held} or {"none"}
    for moment in moments:
        events.counter(
            rank.number, "memory", moment.start, dict.fromkeys(sorted(owners), 0) | dict(moment.held)
        )


def add_rank(events: TraceEvents, profile: Any, rank: RankTimeline) -> None:
    events.process(rank.number, f"rank {rank.number}: {profile.model} on {profile.device_name}", TRACKS)
    for run in rank.runs:
        for track, parts in enumerate(([run.slice], run.operators)):
            for part in parts:
                about = {"layer": run.row.index} | (
                    {"phase": run.phase, "kept": run.row.kept} if track == 0 else {"calls": part.calls}
                )
                events.slice(
                    rank.number,
                    track,
                    part.name,
                    start=part.start,
                    time=part.time,
                    category=run.phase,
                    **about,
                )
    add_memory(events, rank)


def perfetto(profile: Any, ranks: int = 1, recordings: Sequence[Recording | None] = ()) -> str:
    events = TraceEvents()
    for rank in ranks_of(profile, ranks, recordings):
        add_rank(events, profile, rank)
    return json.dumps(events.to_dict()) + "\n"
