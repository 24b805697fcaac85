# SPDX-License-Identifier: Apache-2.0
"""Reads what ran: the `ostinato-trace/1` files that the plugin writes, one per rank, and their Perfetto form.

ranks = read_traces(Path("out/trace"))
ranks[0].instructions[0].text, ranks[0].instructions[0].measured    # "0F0", nanoseconds
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from ostinato.errors import Error, counted, size
from ostinato.trace_events import TraceEvents

FORMAT = "ostinato-trace/1"
COMPUTE = ("F", "B", "I", "W")
MOST_BYTES = 1 << 30  # of a file
MOST_NAMES = 8  # of files in a message

Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Nanoseconds = Annotated[int, Field(ge=0, lt=1 << 62)]
Compared = Annotated[tuple[str, Nanoseconds, Nanoseconds], Strict(False)]  # a list in JSON
Seconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class TraceError(Error):
    """An error in a trace; `str()` is a message for its user."""


class TracedInstruction(BaseModel):
    """One instruction of the last step; times in nanoseconds since the step began, planned and measured.
    `peer`: for a transfer, the device on its other side, and `peer_stage` the stage there; None for computes,
    and in older traces."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    action: Literal["F", "B", "I", "W", "O", "R", "L", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
    stage: Count
    micro_batch: Count
    peer: Count | None = None
    peer_stage: Count | None = None
    planned_start: Nanoseconds
    planned_end: Nanoseconds
    start: Nanoseconds
    end: Nanoseconds
    lane: str = ""  # on which it ran, beside what the rank computed

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

    @property
    def is_transfer(self) -> bool:
        return self.action.startswith(("SEND", "RECV"))


class StepPlan(BaseModel):
    """The planned time of a step, where each step gets its own plan. Nanoseconds; `one_f_one_b`: 1F1B in the
    order in which the data came, 0 where it is not known; `planning`: the time of this rank before the step
    ran; `measured`: from start to end of this rank's part of the pipeline."""

    model_config = ConfigDict(extra="forbid", strict=True)
    plan_sha256: str
    makespan: Nanoseconds
    lower_bound: Nanoseconds
    one_f_one_b: Nanoseconds
    planning: Nanoseconds
    measured: Nanoseconds


class SteadyBlock(BaseModel):
    """The time of a stage's block in the last steps: nanoseconds, median and quartiles of the steps' means. `end`:
    when the last of a step ended, the median of the steps; 0 in older traces."""

    model_config = ConfigDict(extra="forbid", strict=True)
    stage: Count
    action: Literal["F", "B", "I", "W"]
    median: Nanoseconds
    low: Nanoseconds
    high: Nanoseconds
    steps: Count
    end: Nanoseconds = 0


class RankTrace(BaseModel):
    """One rank's file. `step_seconds`: wall clock of every step so far; `makespan`: the plan's, in
    nanoseconds; `predicted`: the predicted time of a step where ranks share cores, 0: the makespan;
    `whole_step`: including the optimizer, 0: not known; `beside`: what it is compared with (gain).
    `peak_memory`: the peak so far, of the whole process or of the accelerator's allocator (`peak_memory_of`).
    `step_plans`: one per step, where each step gets its own plan; other fields are then of the last step.
    `blocks`: where all steps have the same plan."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["ostinato-trace/1"]  # FORMAT
    rank: Count
    device: Count
    step: Count
    plan_sha256: str
    placement_sha256: str = ""
    makespan: Nanoseconds
    instructions: list[TracedInstruction] = Field(min_length=1)
    step_seconds: list[Seconds] = Field(min_length=1)
    peak_memory: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None
    peak_memory_of: Literal["process", "accelerator"] | None = None
    predicted: Nanoseconds = 0
    whole_step: Nanoseconds = 0
    beside: Annotated[tuple[Compared, ...], Strict(False)] = ()
    step_plans: list[StepPlan] = []
    blocks: list[SteadyBlock] = []

    @property
    def pipeline(self) -> int:
        """When this rank's blocks were done, from the step's begin: the median of the last steps where the trace has
        it, else of the last step."""
        steady = max((block.end for block in self.blocks), default=0)
        return steady or max(i.end for i in self.instructions)

    def why_no_run(self) -> str:
        """Why nothing can be compared with the plan, in words; empty: it can."""
        if self.step_plans:  # their times are compared, not the blocks'
            return ""
        if not (self.predicted or self.makespan):
            return "'makespan' is 0, but a step takes time: the plan has no times of layers, or the file is damaged"
        steady: dict[tuple[int, str], float] = {
            (block.stage, block.action): block.median for block in self.blocks
        }
        took = [steady.get((i.stage, i.action), i.measured) for i in self.instructions if i.is_compute]
        if took and not any(took):
            return "all blocks took 0 ns, which no run does: the file is damaged"
        return ""

    @model_validator(mode="after")
    def _has_every_step(self):
        if len(self.step_seconds) != self.step:
            raise ValueError(
                f"'step_seconds' has {counted(len(self.step_seconds), 'entry')} for {counted(self.step, 'step')}"
            )
        if self.step_plans and len(self.step_plans) != self.step:
            raise ValueError(
                f"'step_plans' has {counted(len(self.step_plans), 'entry')} for {counted(self.step, 'step')}"
            )
        return self


def trace_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*.json"))


def read_traces(folder: Path) -> list[RankTrace]:
    """All ranks of a trace folder, by rank. Raises TraceError where it is not one, or mixes plans or steps."""
    files = trace_files(folder)
    if not files:
        if folder.is_file():
            raise TraceError(f"{folder}: this is a file; give its folder")
        what = "no rank-*.json here" if folder.is_dir() else "there is no such folder"
        raise TraceError(
            f'{folder}: {what}; a run writes rank-*.json to the folder "trace" of its ostinato section'
        )
    ranks = [_read(path) for path in files]
    for path, trace in zip(files, ranks, strict=True):
        if wrong := trace.why_no_run():
            raise TraceError(f"{path}: {wrong}")
    newest = _newest(files)
    paths = dict(zip((trace.rank for trace in ranks), files, strict=True))
    ranks.sort(key=lambda trace: trace.rank)
    for before, after in pairwise(ranks):
        if before.rank == after.rank:
            raise TraceError(f"{folder}: two files belong to rank {after.rank}")
    for key in ("plan_sha256", "step", "makespan", "predicted", "whole_step", "beside"):
        if len({getattr(trace, key) for trace in ranks}) > 1 and (
            key == "step" or not all(trace.step_plans for trace in ranks)
        ):
            mine = next(getattr(trace, key) for trace in ranks if paths[trace.rank] == newest)
            apart = [paths[trace.rank].name for trace in ranks if getattr(trace, key) != mine]
            raise TraceError(
                f"{folder}: the ranks differ in {key}: this folder mixes files of several runs; delete those of the earlier ones: {_some(apart)}"
            )
    return ranks


def _newest(files: list[Path]) -> Path:
    """The file that was written last."""
    try:
        return max(files, key=lambda path: path.stat().st_mtime)
    except OSError:  # removed in between
        return files[0]


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def missing_devices(ranks: list[RankTrace]) -> list[int]:
    """Devices with missing ranks: other ranks exchange messages with them, or more pipelines have the other
    devices."""
    counts = Counter(trace.device for trace in ranks)
    peers = {i.peer for trace in ranks for i in trace.instructions if i.peer is not None}
    return sorted(device for device in peers | counts.keys() if counts[device] < max(counts.values()))


def _read(path: Path) -> RankTrace:
    """Reads a file. Raises TraceError with the file and the place in it."""
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise TraceError(f"{path}: larger than {size(MOST_BYTES)}")
        made = json.loads(text.decode())
        if not isinstance(made, dict):
            raise TraceError(f"{path}: the file must hold a table{', not a list' * isinstance(made, list)}")
        _check_format(path, made.get("format"))
        return RankTrace.model_validate(made)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string"):
            raise TraceError(
                f"{path}:{error.lineno}: the file ends in the middle of its JSON: was it cut off, or is it still being written?"
            ) from error
        raise TraceError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the trace"
        raise TraceError(f"{path}: {place}: {first['msg']}") from error
    except (RecursionError, ValueError) as error:  # too deeply nested; a number with thousands of digits
        raise TraceError(f"{path}: not a trace: {str(error).splitlines()[0]}") from error


def _check_format(path: Path, found: object) -> None:
    """Raises TraceError for another format, in the words of the command line (search/files/value.cpp)."""
    if found == FORMAT or not isinstance(found, str):
        return
    if found.startswith("ostinato-trace/"):
        what = f"this version of ostinato reads '{FORMAT}'"
    else:
        what = f"'{FORMAT}' is expected here: is this the right file?"
    raise TraceError(f"{path}: 'format' is {ascii(found[:40])}; {what}")


KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight",
         "O": "offload", "R": "offload", "L": "load"}  # fmt: skip
MEASURED, PLANNED = 0, 2  # tracks of a rank; transfers have 1, and 3 and more where they overlap


def perfetto(ranks: list[RankTrace]) -> dict:
    """Chrome/Perfetto JSON of the last step: one process per rank, with measured above planned times, and
    arrows from sends to receives. What runs once per micro-batch has one name and one category."""
    events = TraceEvents()
    transfers: list[Transfer] = []
    for trace, replica in zip(ranks, replicas(ranks), strict=True):
        own = on_tracks([i for i in trace.instructions if i.lane or not i.is_compute])
        more = ["measured transfers"] * (max((track for track, _ in own), default=1) - PLANNED)
        events.process(trace.rank, f"rank {trace.rank}", ("measured", "measured transfers", "planned", *more))
        for i in (i for i in trace.instructions if i.is_compute and not i.lane):
            add(events, trace.rank, MEASURED, i, i.start, i.measured, KINDS[i.action])
            add(events, trace.rank, PLANNED, i, i.planned_start, i.planned, KINDS[i.action])
        for track, i in own:
            add(events, trace.rank, track, i, i.start, i.measured, KINDS.get(i.action, "transfer"))
            if i.is_transfer:
                transfers.append(Transfer(trace.rank, trace.device, replica, track, i))
    for number, (sent, received) in enumerate(pairs(transfers)):
        events.arrow(number, sent.name, sent.middle, received.middle)
    return events.to_dict()


def add(
    events: TraceEvents, rank: int, track: int, i: TracedInstruction, start: int, time: int, category: str
) -> None:
    about = {
        "instruction": i.text,
        "stage": i.stage,
        "micro_batch": i.micro_batch,
        "planned_us": i.planned / 1e3,
    }
    events.slice(rank, track, f"{i.stage}{i.action}", start=start, time=time, category=category, **about)


def on_tracks(transfers: list[TracedInstruction]) -> list[tuple[int, TracedInstruction]]:
    """Each with a track such that none overlap on a track, as the format requires."""
    free: dict[int, int] = {}  # track: when it is free again
    placed = []
    for i in sorted(transfers, key=lambda i: (i.start, i.end)):
        track = next((t for t, end in free.items() if end <= i.start), None)
        if track is None:
            track = 1 if not free else PLANNED + len(free)
        free[track] = i.end
        placed.append((track, i))
    return placed


def replicas(ranks: list[RankTrace]) -> list[int]:
    """The pipeline of each rank: its place among the ranks of its device."""
    return [sum(other.device == trace.device for other in ranks[:place]) for place, trace in enumerate(ranks)]


class Transfer(NamedTuple):
    rank: int
    device: int
    replica: int
    track: int
    instruction: TracedInstruction

    @property
    def name(self) -> str:
        return f"{self.instruction.stage}{self.instruction.action}"

    @property
    def middle(self) -> tuple[int, int, float]:
        return self.rank, self.track, self.instruction.start + self.instruction.measured / 2

    @property
    def message(self) -> tuple:
        """Equal on both sides, and different for every other message: which rank sends what to which. In an
        older trace, which names no peers, only what both sides know."""
        i = self.instruction
        side, _, direction = i.action.partition("_")
        if i.peer is None:
            return direction, self.replica, i.micro_batch, i.planned_start, i.planned_end
        ends = (self.device, i.stage), (i.peer, i.peer_stage)
        return direction, self.replica, i.micro_batch, *(ends if side == "SEND" else ends[::-1])


def pairs(transfers: list[Transfer]) -> Iterator[tuple[Transfer, Transfer]]:
    """Sends with their receives. In an older trace, which names no peers, several may look alike: they are paired
    if they leave one rank or arrive at one, else left out, because they cannot be told apart."""
    alike: dict[tuple, dict[str, list[Transfer]]] = {}
    for transfer in transfers:
        side = transfer.instruction.action.partition("_")[0]
        alike.setdefault(transfer.message, {}).setdefault(side, []).append(transfer)
    for sides in alike.values():
        sent, received = sides.get("SEND", []), sides.get("RECV", [])
        if len(sent) == len(received) and 1 in (len({t.rank for t in sent}), len({t.rank for t in received})):
            yield from zip(sent, received, strict=True)
