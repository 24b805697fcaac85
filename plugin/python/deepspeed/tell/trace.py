# SPDX-License-Identifier: Apache-2.0
"""What ran, on disk: `ostinato-trace/1`, one file per rank, which `ostinato report` reads.

A file holds the last step in full and the seconds of every step. It is written again at steps 1, 2, 3, 4, 5, 7,
9, 12, ... (each a quarter beyond the last, so that all ranks write at the same steps and the cost per step
shrinks), and when the process or the engine ends.
"""

import json
import os
import re
import resource
import statistics
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from ostinato import _profiler
from ostinato.files import Diagnostic
from ostinato.gain import WARM_UP
from ostinato.trace import FORMAT

from .announce import say

STEADY = 32  # steps, of which the median tells what a block takes

_writers: dict[Path, "Trace"] = {}  # by file: the last engine of this process that has it


class Trace:
    """The trace of one rank. `device` is its pipeline rank. Where several engines of a script have one folder, the one
    made last writes: whether the script still has those before is not known. If one of them trains on, rank 0 says so."""

    def __init__(self, folder: Path, program, rank: int, device: int):
        self._file = Diagnostic(folder / f"rank-{rank}.json")
        self._rank, self._device = rank, device
        self._is_over = self._has_told = False
        self.follow(program)
        # Runs at the end of a process however multiprocessing started it; atexit is not called in a forked
        # one.
        self._at_the_end = util.Finalize(self, self.write, exitpriority=100)
        if (before := _writers.get(self._file.path)) is not None:
            before._leave()
        _writers[self._file.path] = self
        if dist.is_initialized() and os.environ.get("LOCAL_RANK", "0") == "0":
            _remove_beyond(folder, dist.get_world_size())

    def follow(self, program) -> None:
        """From here on `program` runs: the file tells of its steps alone."""
        self._head: dict[str, Any] = {"format": FORMAT, "rank": self._rank, "device": self._device}
        self._head |= {"plan_sha256": program.plan_sha256, "placement_sha256": program.placement_sha256}
        self._head["makespan"] = program.makespan
        self._note_prediction(program)
        if program.beside:
            self._head["beside"] = program.beside
        self._steps: list[dict[str, Any]] = []
        self._planned = list(program.instructions(self._device))
        self._lanes = [[stage.lane for stage in program.stages], [stage.offload for stage in program.stages]]
        self._steady = Steady(self._planned, STEADY)
        self._records: list[tuple[int, int, int]] = []
        self._seconds: list[float] = []
        self._written = 0

    def _note_prediction(self, program) -> None:
        """Adds `predicted` where ranks share cores, and `whole_step` where the optimizer's time is known."""
        known = {"predicted": program.predicted != program.makespan, "whole_step": program.whole_step > 0}
        for name, is_known in known.items():
            self._head.pop(name, None)
            if is_known:
                self._head[name] = getattr(program, name)

    def planned(self, program, plan) -> None:
        """The next step has its own plan (step_plans)."""
        self._planned = list(program.instructions(self._device))
        self._head |= {"plan_sha256": plan.plan_sha256, "makespan": plan.makespan}
        self._head.pop("beside", None)
        self._note_prediction(program)
        self._steps.append(plan.row())

    def step(self, seconds: float, executor) -> None:
        """Notes a step; writes the file when it is time to."""
        if self._is_over:
            return self._tell_of_later()
        self._seconds.append(seconds)
        self._records = executor.records()
        if not self._steps:
            if len(self._seconds) == WARM_UP + 1:
                self._steady = Steady(self._planned, STEADY)
            self._steady.add(self._records)
        else:
            self._steps[-1]["measured"] = max(end for _, _, end in self._records)
        if 4 * len(self._seconds) >= 5 * self._written:
            self.write()

    def write(self) -> None:
        """Replaces the file if there are new steps."""
        if self._is_over or self._written == len(self._seconds):
            return
        self._written = len(self._seconds)
        instructions = [self._row(*record) for record in self._records]
        whole = {"step": self._written, "instructions": instructions, "step_seconds": self._seconds}
        if self._steps:
            whole["step_plans"] = self._steps[: self._written]
        else:
            whole["blocks"] = [
                {"stage": stage, "action": action}
                | _spread(means)
                | {"end": statistics.median_low(self._steady.ends[stage, action])}
                for (stage, action), means in sorted(self._steady.means.items())
            ]
        self._file.write(json.dumps({**self._head, **whole, **_peak_memory()}))

    def close(self) -> None:
        """No step follows."""
        self.write()
        self._leave()

    def _leave(self) -> None:
        self._is_over = True
        self._at_the_end.cancel()
        if _writers.get(self._file.path) is self:
            del _writers[self._file.path]

    def _tell_of_later(self) -> None:
        if not self._has_told:
            say(
                f'"trace": an engine that was made later writes to {self._file.path.parent}, so an earlier one that trains on leaves no trace: '
                "give each a separate folder"
            )
        self._has_told = True

    def _row(self, index: int, start: int, end: int) -> dict:
        planned = self._planned[index]
        other = {} if planned.peer < 0 else {"peer": planned.peer, "peer_stage": planned.peer_stage}
        copies = planned.action in "OL"
        if planned.peer < 0 and (lane := self._lanes[copies][planned.stage]):
            other["lane"] = lane
        return other | {
            "text": str(planned),
            "action": planned.action,
            "stage": planned.stage,
            "micro_batch": planned.micro_batch,
            "planned_start": planned.start,
            "planned_end": planned.end,
            "start": start,
            "end": end,
        }


def _remove_beyond(folder: Path, ranks: int) -> None:
    """Removes what an earlier run with more ranks has left."""
    with suppress(OSError):
        for path in folder.iterdir():
            named = re.fullmatch(r"rank-(0|[1-9][0-9]*)\.json", path.name)
            if named and int(named[1]) >= ranks and _is_trace(path):
                path.unlink(missing_ok=True)


def _is_trace(path: Path) -> bool:
    begin = b'{"format": "ostinato-trace/'
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


class Steady:
    """What each block took in the last `steps` steps: nanoseconds, the means of its micro-batches, and when the last of
    these ended."""

    def __init__(self, instructions: Sequence[Any], steps: int):
        self._blocks, self._steps = blocks_of(instructions), steps
        self.means: dict[tuple[int, str], deque[int]] = {}  # by stage and action
        self.ends: dict[tuple[int, str], deque[int]] = {}

    def add(self, records: list[tuple[int, int, int]]) -> None:
        ends: dict[tuple[int, str], int] = {}
        for index, _, end in records:
            if (block := self._blocks[index]) is not None:
                ends[block] = max(end, ends.get(block, 0))
        for noted, of_step in ((self.means, means_of(self._blocks, records)), (self.ends, ends)):
            for block, time in of_step.items():
                noted.setdefault(block, deque(maxlen=self._steps)).append(time)


def blocks_of(instructions: Sequence[Any]) -> list[tuple[int, str] | None]:
    """Stage and action of each; None where it does not compute."""
    return [(i.stage, i.action) if i.action in "FBIW" else None for i in instructions]


def means_of(
    blocks: list[tuple[int, str] | None], records: list[tuple[int, int, int]]
) -> dict[tuple[int, str], int]:
    """Of a step: by stage and action, the mean nanoseconds of its blocks. `blocks`: as blocks_of()."""
    totals: dict[tuple[int, str], list[int]] = {}
    for index, start, end in records:
        if (block := blocks[index]) is not None:
            of_block = totals.setdefault(block, [0, 0])
            of_block[0] += end - start
            of_block[1] += 1
    return {block: total // count for block, (total, count) in totals.items()}


def _spread(times: Sequence[int]) -> dict[str, int]:
    found = _profiler.spread_of(list(times))
    return {"median": found.median, "low": found.low, "high": found.high, "steps": len(times)}


_before_reset = 0  # bytes: the largest peak of the accelerator's allocator before something reset it


def keep_peak() -> None:
    """Before this process resets the peak of the accelerator's allocator: the trace tells the largest so far."""
    global _before_reset
    if get_accelerator().device_name() != "cpu":
        _before_reset = max(_before_reset, get_accelerator().max_memory_allocated())


def _peak_memory() -> dict[str, Any]:
    """Bytes, and of what: of the allocator of the accelerator that trains, else of the process."""
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":
        return {
            "peak_memory": max(_before_reset, accelerator.max_memory_allocated()),
            "peak_memory_of": "accelerator",
        }
    return {
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_memory_of": "process",
    }
