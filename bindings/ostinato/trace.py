# SPDX-License-Identifier: Apache-2.0
"""Reading what ran: the `ostinato-trace/1` files that the plugin leaves, one a rank, and their Perfetto form.

    ranks = read_traces(Path("out/trace"))
    ranks[0].instructions[0].text, ranks[0].instructions[0].measured    # "0F0", nanoseconds
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ostinato.errors import Error
from ostinato.trace_events import TraceEvents

COMPUTE = ("F", "B", "I", "W")
MOST_BYTES = 1 << 30  # of a file

Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Nanoseconds = Annotated[int, Field(ge=0, lt=1 << 62)]
Seconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class TraceError(Error):
    """What is wrong with a trace, as a message for its user."""


class TracedInstruction(BaseModel):
    """One instruction of the last step; times in nanoseconds since the step began, planned and measured."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    action: Literal["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
    stage: Count
    micro_batch: Count
    planned_start: Nanoseconds
    planned_end: Nanoseconds
    start: Nanoseconds
    end: Nanoseconds

    @model_validator(mode="after")
    def _ends_after_it_starts(self):
        if self.planned_end < self.planned_start or self.end < self.start:
            raise ValueError("ends before it starts")
        return self

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
    """One rank's file. `step_seconds`: wall clock of every step so far; `makespan`: the plan's, in nanoseconds;
    `one_f_one_b`: what 1F1B would take, 0 where nothing says it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["ostinato-trace/1"]
    rank: Count
    device: Count
    step: Count
    plan_sha256: str
    makespan: Nanoseconds
    instructions: list[TracedInstruction] = Field(min_length=1)
    step_seconds: list[Seconds] = Field(min_length=1)
    peak_memory: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None
    one_f_one_b: Nanoseconds = 0

    @model_validator(mode="after")
    def _has_every_step(self):
        if len(self.step_seconds) != self.step:
            raise ValueError(f"'step_seconds' has {len(self.step_seconds)} entries for {self.step} steps")
        return self


def read_traces(folder: Path) -> list[RankTrace]:
    """All ranks of a trace folder, by rank. Raises TraceError where it is not one, or mixes plans or steps."""
    files = sorted(folder.glob("rank-*.json"))
    if not files:
        raise TraceError(f'{folder}: no rank-*.json here; a run leaves them where "trace" of its ostinato section points')
    ranks = [_read(path) for path in files]
    ranks.sort(key=lambda trace: trace.rank)
    for before, after in pairwise(ranks):
        if before.rank == after.rank:
            raise TraceError(f"{folder}: two files are of rank {after.rank}")
    for key in ("plan_sha256", "step", "makespan", "one_f_one_b"):
        if len({getattr(trace, key) for trace in ranks}) > 1:
            raise TraceError(f"{folder}: the ranks differ in {key}: files of several runs are mixed here")
    return ranks


def _read(path: Path) -> RankTrace:
    """Raises TraceError with the file and the place in it."""
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise TraceError(f"{path}: is larger than {MOST_BYTES} bytes")
        return RankTrace.model_validate(json.loads(text.decode()))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the trace"
        raise TraceError(f"{path}: {place}: {first['msg']}") from error
    except (RecursionError, ValueError) as error:  # nested too deep; a number of thousands of digits
        raise TraceError(f"{path}: not a trace: {str(error).splitlines()[0]}") from error


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
