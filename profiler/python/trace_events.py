# SPDX-License-Identifier: Apache-2.0
"""Chrome's trace format, which ui.perfetto.dev and chrome://tracing open: a process a rank, with tracks of
slices and counters.

events = TraceEvents()
events.process(0, "rank 0", tracks=("layers", "operators"))
events.slice(0, 0, "3:Linear", start=1_000, time=500, category="forward", layer=3)      # nanoseconds
events.counter(0, "memory", 1_000, {"parameters": 4096})
json.dumps(events.to_dict())
"""

from collections.abc import Mapping, Sequence
from typing import Any


class TraceEvents:
    """Times are given in nanoseconds; the format has microseconds."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def process(self, rank: int, name: str, tracks: Sequence[str] = ()) -> None:
        self._named({"pid": rank}, "process_name", name)
        for number, track in enumerate(tracks):
            self._named({"pid": rank, "tid": number}, "thread_name", track)

    def slice(
        self, rank: int, track: int, name: str, *, start: float, time: float, category: str, **args: Any
    ) -> None:
        place = {"ph": "X", "pid": rank, "tid": track, "name": name, "cat": category}
        self._events.append({**place, "ts": start / 1e3, "dur": time / 1e3, "args": args})

    def arrow(
        self, number: int, name: str, sent: tuple[int, int, float], received: tuple[int, int, float]
    ) -> None:
        """From a slice to another, each given by rank, track and an instant within it; `number`: unique among
        arrows."""
        for phase, (rank, track, at) in (("s", sent), ("f", received)):
            enclosing = {"bp": "e"} if phase == "f" else {}  # the slice around the instant, not the next one
            place = {"ph": phase, "id": number, "pid": rank, "tid": track, "name": name, "cat": "transfer"}
            self._events.append({**place, **enclosing, "ts": at / 1e3})

    def counter(self, rank: int, name: str, at: float, values: Mapping[str, int]) -> None:
        """A viewer keeps the last of a value that is left out: name all of them each time."""
        self._events.append({"ph": "C", "pid": rank, "name": name, "ts": at / 1e3, "args": dict(values)})

    def to_dict(self, **figures: Any) -> dict[str, Any]:
        """`figures`: of the trace as a whole."""
        others = {"otherData": figures} if figures else {}
        return {"displayTimeUnit": "ms", **others, "traceEvents": self._events}

    def _named(self, place: dict[str, int], what: str, name: str) -> None:
        self._events.append({"ph": "M", **place, "name": what, "args": {"name": name}})
