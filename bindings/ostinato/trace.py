# SPDX-License-Identifier: Apache-2.0
"""Reading what ran: the `ostinato-trace/1` files that the plugin leaves, one a rank, and their Perfetto form.

    ranks = read_traces(Path("out/trace"))
    ranks[0].instructions[0].text, ranks[0].instructions[0].measured    # "0F0", nanoseconds
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.errors import Error
from ostinato.trace_events import TraceEvents

COMPUTE = ("F", "B", "I", "W")


class TraceError(Error):
    """What is wrong with a trace, as a message for its user."""


class TracedInstruction(BaseModel):
    """One instruction of the last step; times in nanoseconds since the step began, planned and measured."""

    model_config = ConfigDict(extra="forbid")
    text: str
    action: str
    stage: int
    micro_batch: int
    planned_start: int
    planned_end: int
    start: int
    end: int

    @property
    def planned(self) -> int:
        return self.planned_end - self.planned_start

    @property
    def measured(self) -> int:
        return self.end - self.start

    @property
    def is_compute(self) -> bool:
        return self.action in COMPUTE


class RankTrace(BaseModel):
    """One rank's file. `step_seconds`: wall clock of every step so far; `makespan`: the plan's, in nanoseconds."""

    model_config = ConfigDict(extra="forbid")
    format: Literal["ostinato-trace/1"]
    rank: int = Field(ge=0)
    device: int = Field(ge=0)
    step: int = Field(ge=0)
    plan_sha256: str
    makespan: int = Field(ge=0)
    instructions: list[TracedInstruction] = Field(min_length=1)
    step_seconds: list[float] = Field(min_length=1)
    peak_memory: int | None = None


def read_traces(folder: Path) -> list[RankTrace]:
    """All ranks of a trace folder, by rank. Raises TraceError where it is not one, or mixes plans or steps."""
    files = sorted(folder.glob("rank-*.json"))
    if not files:
        raise TraceError(f'{folder}: no rank-*.json here; a run leaves them where "trace" of its ostinato section points')
    ranks = []
    for path in files:
        try:
            ranks.append(RankTrace.model_validate(json.loads(path.read_text())))
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise TraceError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    ranks.sort(key=lambda trace: trace.rank)
    for key in ("plan_sha256", "step"):
        if len({getattr(trace, key) for trace in ranks}) > 1:
            raise TraceError(f"{folder}: the ranks differ in {key}: files of several runs are mixed here")
    return ranks


def perfetto(ranks: list[RankTrace]) -> dict:
    """Chrome/Perfetto JSON of the last step: a process a rank, with what was planned under what was measured."""
    events = TraceEvents()
    for trace in ranks:
        events.process(trace.rank, f"rank {trace.rank}", ("measured", "measured transfers", "planned"))
        for i in trace.instructions:
            about = {"category": i.action, "stage": i.stage, "micro_batch": i.micro_batch, "planned_us": i.planned / 1e3}
            events.slice(trace.rank, 0 if i.is_compute else 1, i.text, start=i.start, time=i.measured, **about)
            if i.is_compute:
                events.slice(trace.rank, 2, i.text, start=i.planned_start, time=i.planned, **about)
    return events.to_dict()
