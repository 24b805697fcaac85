# SPDX-License-Identifier: Apache-2.0
"""Plans again while the run goes on. Every so often rank 0 compares measured block times with the plan; where a
device has become slow, or fast again, or layers take longer or shorter than profiled, it searches a new plan
beside the training, with the measured times.

    run.adapt = Adapt(asked, search, run.program, device, paths, moved, move)
    reordered = run.adapt.step(program, executor, step)     # after every step, on every rank: a plan to go on with
    run.adapt.saved(step, check)        # after a checkpoint, on every rank
    run.adapt.before_step(step)         # on every rank; does not return if all ranks start again with the new plan

A plan on the same stages moves no layer: all ranks go on with it at once. A new plan expects the measured
times: only a further change leads to a further plan, so layers do not move back and forth.

What a plan predicts is less than what a step takes, which also waits for messages and runs the engine. So the gain of a
new plan is over the plan that runs, replayed with the measured times.
"""

import hashlib
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from ostinato.core import simulate
from ostinato.errors import Error
from ostinato.files import ADAPTED, BASE, BASE_DEVICES, Diagnostic, write_text
from ostinato.measured import Measured, replanned, speeds_in, times_in
from ostinato.objects import Placement, Plan, Profile
from ostinato.groups import everyones
from ostinato.restrictions import Restriction
from pydantic import BaseModel

from ..errors import OstinatoError
from ..section import plans, verdict
from ..section.config import Adapting, Paths, Search
from ..section.kept import FILES, PLACEMENT, PLAN, PROFILE
from ..tell.announce import say
from ..tell.drift import WARM_UP, BlockTimes, Comparisons, overall_change, slow_devices

DEVICES = "devices.toml"  # with the measured speeds
ALLOWED = "allowed.json"  # the measured profile, and what plans of this run obey

# (texts of the new plan's files by name, what the next start must know): returns only where the ranks cannot
# start again, with the reason
Move = Callable[[Mapping[str, str], "Moved"], str]

# What runs `ostinato` in a search. Its standard input is a pipe that closes when the training ends, in whatever way, or
# starts again: then it ends, too.
WITH_TRAINING = (
    "import os, runpy, threading; threading.Thread(target=lambda: os._exit(len(os.read(0, 1)) + 1), daemon=True).start(); "
    "runpy.run_module('ostinato', run_name='__main__', alter_sys=True)"
)


class Moved(BaseModel):
    """What a start knows of the move before it. `step`: of the checkpoint; `took`, `expected`: ns of the pipeline's
    part of a step before the move, and after it (0: not known)."""

    step: int
    took: float
    expected: float = 0.0


class Better(NamedTuple):
    """A plan that is worth a change. `files`: their texts by name; {}: the last one no longer is. `gain`: how many
    times as fast as now a step is expected to be."""

    files: Mapping[str, str]
    gain: float = 1.0


NO_BETTER = Better({})


class Reordered(NamedTuple):
    """A plan on the same stages. `placement`: its text, with measured times."""

    program: Any
    placement: str


class Adapt:
    """Of one engine. All ranks must make one, with equal arguments. `moved`: set if this start follows a move."""

    def __init__(
        self,
        asked: Adapting,
        search: Search,
        program,
        device: int,
        paths: Paths,
        moved: Moved | None,
        move: Move,
        restrictions: Sequence[Restriction] = (),
    ):
        """`restrictions`: of this run, which every new plan obeys."""
        assert paths.output is not None
        self._device, self._restrictions = device, restrictions
        self._asked, self._search, self._move, self._moved = asked, search, move, moved
        self._paths, self._output = paths, paths.output
        self._took = 0.0  # ns of the pipeline's part of recent steps
        self._now = 0.0  # on rank 0: ns that the plan that runs predicts with the times of the last search
        self._since = "the move"
        self._saved = -1  # the step of the last checkpoint
        self._moves = asked.move
        self._planning: subprocess.Popen | None = None  # on rank 0
        self._follow(program)

    def _follow(self, program) -> None:
        """From here on compares with this one."""
        self._program, self._stages = program, plans.stages_of(program)
        self._times = BlockTimes(program, self._device, self._asked.every)
        self._ends = deque[int](maxlen=self._asked.every)
        self._steps = -WARM_UP
        self._next = NO_BETTER  # the same on all ranks
        self._comparisons = Comparisons()  # on rank 0

    def begins(self, step: int) -> None:
        """To be called before the first step. Raises OstinatoError where the script has loaded no checkpoint after
        all ranks restarted. It may have loaded an earlier one: what was saved last may be in a folder for the best."""
        if self._moved is None or self._moved.step == step:
            return
        after = f"all ranks restarted after the checkpoint of step {self._moved.step}, but the script"
        if step == 0:
            raise OstinatoError(
                f"{after} begins with step 1: let it load its latest checkpoint when it starts, or remove "
                '"move" from "adapt"'
            )
        say(f"{after} has loaded that of step {step}: it goes on from there")

    def step(self, program, executor, step: int) -> Reordered | None:
        """`program`: that it ran; with another number of micro-batches than configured nothing is compared."""
        if program is not self._program:
            return None
        self._steps += 1
        if self._steps <= 0:
            return None
        records = executor.records()
        self._times.add(records)
        self._ends.append(max(end for _, _, end in records))
        return self._compare(step) if self._steps % self._asked.every == 0 else None

    def _compare(self, step: int) -> Reordered | None:
        decided = self._decided() if dist.get_rank() == 0 else None
        everyone = everyones((self._times.rows(), statistics.median(self._ends), decided))
        self._took = max(end for _, end, _ in everyone)
        if self._moved is not None and self._steps == self._asked.every:
            now, before = self._took / 1e6, self._moved.took / 1e6
            say(
                f"measured since {self._since}: {before / now:.2f} times as fast ({before:.1f} -> {now:.1f} ms a step, without the optimizer)"
            )
        if (decided := everyone[0][2]) is not None:
            self._next = decided
            if (program := self._lowered_next()) is not None and plans.stages_of(program) == self._stages:
                return self._reordered(program, step)
        if dist.get_rank() == 0:
            rows = [row for of_rank, _, _ in everyone for row in of_rank]
            try:
                self._look(Measured.of_rows(rows, self._speeds()), step)
            except (Error, OSError) as error:
                say(f'"adapt" cannot search a new plan: {error}')
        return None

    def _reordered(self, program, step: int) -> Reordered:
        """The new plan leaves every layer where it is: all ranks go on with it."""
        made = Reordered(program, self._next.files[PLACEMENT])
        self._keep(self._next.files)
        self._moved, self._since = self._move_after(step, self._next), "the new order"
        self._follow(program)
        return made

    def _move_after(self, step: int, better: Better) -> Moved:
        return Moved(step=step, took=self._took, expected=self._took / better.gain)

    def _look(self, found: Measured, step: int) -> None:
        """Acts on what two comparisons in a row agree on, which is not noise."""
        seen = self._comparisons
        if not found.overall or not seen.settled(found):
            return
        told = slow_devices(found) + overall_change(found, found.overall, "planned")
        if not told:
            seen.as_planned(step)
        elif self._planning is None and seen.is_news(found):
            seen.told = found
            say(f"step {step}: {'; '.join(told)}; searching a new plan in the background")
            self._plan(found)

    def _speeds(self) -> list[float]:
        """That the running plan was made for; []: all alike."""
        file = self._output / ADAPTED / BASE_DEVICES
        return speeds_in(file.read_text()) if file.is_file() else []

    def _plan(self, found: Measured) -> None:
        """Starts a search in a low-priority process, which leaves the cores to the training; so it may take long."""
        folder = self._output / ADAPTED
        base = folder / BASE
        placement = Placement.from_file(self._output / PLACEMENT)
        profile = Profile.from_file(base if base.is_file() else self._output / PROFILE)
        if placement.sha256 != self._program.placement_sha256:
            raise OstinatoError(f"{self._output / PLACEMENT} is not the placement of this run")
        running = Plan.from_file(self._output / PLAN, placement)
        if not verdict.is_of(self._output / PLAN, self._program.plan_sha256):
            raise OstinatoError(f"{self._output / PLAN} is not the plan of this run")
        self._now = _replayed(running, found)
        measured, devices = replanned(found, placement.to_dict(), profile.to_dict())
        allowed = Profile.from_text(measured).restricted(self._restrictions).text
        for name, text in ((PROFILE, measured), (ALLOWED, allowed), (DEVICES, devices)):
            write_text(folder / name, text)
        options = {"threads": 1, "time_limit": 0} | self._search.model_dump(
            exclude_none=True, exclude=Search.RESTRICT | {"device_memory", "inference"}
        )
        given = [word for key, value in options.items() for word in _as_option(key, value)]
        command = [
            "nice",
            "-n",
            "19",
            sys.executable,
            "-c",
            WITH_TRAINING,
            "plan",
            str(folder / ALLOWED),
            "--devices",
            str(folder / DEVICES),
        ]
        command += ["--micro-batches", str(self._program.micro_batches), "--all-devices", "--quiet", *given]
        command += ["--output", str(folder / PLAN), "--placement-output", str(folder / PLACEMENT)]
        with open(folder / "said", "w") as said:
            self._planning = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)

    def _decided(self) -> Better | None:
        """On rank 0; None: nothing new."""
        if self._comparisons.told is None and self._next.files:
            return NO_BETTER
        if self._planning is None or (status := self._planning.poll()) is None:
            return None
        self._planning = None
        try:
            return self._judged(status)
        except (OstinatoError, OSError) as error:  # the other ranks wait for an answer
            say(f'"adapt" found no new plan: {error}')
            return None

    def _judged(self, status: int) -> Better | None:
        """The result of the search, which ended with `status`."""
        folder = self._output / ADAPTED
        if status:
            raise OstinatoError((folder / "said").read_text().strip())
        found = self._lowered_from(folder)
        stays = plans.stages_of(found) == self._stages
        if stays and _orders(found) == _orders(self._program):
            say("no other plan is better: the current plan stays")
            return None
        gain = self._now / found.predicted
        times = f"{self._took / 1e6:.1f} -> {self._took / gain / 1e6:.1f} ms a step"
        if gain < 1 + self._asked.gain:
            wanted = f'"gain" asks for {1 + self._asked.gain:g} times'
            say(
                f"a new plan would be only {gain:.3f} times as fast ({times}); {wanted}, so the current plan stays"
            )
            return None
        then = f"it is in {folder}"
        if stays:
            then = "no layer moves, so all ranks go on with it"
        elif self._moves:
            then = "all ranks restart with it after the next checkpoint"
        say(f"a new plan is expected to be {gain:.2f} times as fast ({times}); {then}")
        return Better({name: (folder / name).read_text() for name in (*FILES, PROFILE, DEVICES)}, gain)

    def _lowered_next(self):
        """All ranks must call it. None: there is none, or a rank cannot take it, and all stay with the current plan."""
        if not self._next.files:
            return None
        program, why = None, ""
        try:
            program = self._lowered(self._next.files)
        except OstinatoError as error:
            why = f"cannot run the new one: {error}"
        except OSError as error:
            why = f"cannot write the new one to a temporary folder: {error} (TMPDIR chooses another)"
        failed = {rank: said for rank, said in enumerate(everyones(why)) if said}
        if not failed:
            return program
        rank, why = min(failed.items())
        say(f"all ranks stay with the current plan, because rank {rank} {why}")
        self._next = NO_BETTER
        return None

    def _lowered(self, files: Mapping[str, str]):
        with tempfile.TemporaryDirectory() as name:
            for file in FILES:
                (Path(name) / file).write_text(files[file])
            return self._lowered_from(Path(name))

    def _lowered_from(self, folder: Path):
        paths = {"plan": folder / PLAN, "placement": folder / PLACEMENT}
        return plans.lower(self._paths.model_copy(update=paths))

    def saved(self, step: int, check: Callable[[list[plans.Stage]], None]) -> None:
        """All ranks must call it, once the checkpoint of this step is complete. `check` raises OstinatoError on each
        where ranks with these stages could not load it: then no rank moves, or the run would end there."""
        self._saved = step
        if not self._moves or (program := self._lowered_next()) is None:
            return
        try:
            check(plans.stages_of(program))
        except OstinatoError as error:
            self._moves, self._next = False, NO_BETTER
            say(f"all ranks stay where they are, because they could not go on from a checkpoint: {error}")

    def before_step(self, step: int) -> None:
        """All ranks must call it, after this many steps. They start again here, not where the checkpoint was
        saved: by now the script has done what follows a checkpoint, such as an evaluation or more files
        beside it."""
        if not self._next.files or not self._moves or self._saved != step:
            return
        better, self._next = self._next, NO_BETTER
        self._keep(better.files)
        self.close()
        files = {name: better.files[name] for name in FILES}
        if why := self._move(files, self._move_after(step, better)):
            say(
                f"the ranks cannot restart with the new plan, because {why}; it is in {self._output / ADAPTED}"
            )

    def _keep(self, files: Mapping[str, str]) -> None:
        """For later starts, and for the next search."""
        if dist.get_rank() != 0:
            return
        plan = self._output / PLAN
        if not verdict.is_of(plan, self._program.plan_sha256):
            say(f"{self._output} no longer has the plan of this run: the new plan is not left there")
            return
        base = {PROFILE: f"{ADAPTED}/{BASE}", DEVICES: f"{ADAPTED}/{BASE_DEVICES}"}
        with suppress(OSError):
            # A run that ends meanwhile leaves no plan, rather than one for another placement.
            plan.unlink()
            for name in (DEVICES, PROFILE, PLACEMENT):
                if name in files and not Diagnostic(self._output / base.get(name, name)).write(files[name]):
                    return
            Diagnostic(plan).write(files[PLAN])
            digest = hashlib.sha256(files[PLAN].encode()).hexdigest()
            verdict.leave_options(plan, digest, self._search.deciding())

    def close(self) -> None:
        if self._planning is not None:
            self._planning.kill()
            self._planning.wait()
            self._planning = None


def _replayed(running: Plan, found: Measured) -> int:
    """Nanoseconds that a plan takes with the measured times."""
    batch = {"times": times_in(found, running.placement.to_dict())}
    return simulate(running, sizes=[batch] * running.micro_batches, runs=1).at(100)


def _orders(program) -> list[list[tuple]]:
    """What each device runs, in order."""
    devices = range(1 + max(rank for stage in plans.stages_of(program) for rank in stage.ranks))
    return [[(i.stage, i.action, i.micro_batch) for i in program.instructions(d)] for d in devices]


def _as_option(key: str, value: object) -> list[str]:
    option = f"--{key.replace('_', '-')}"
    return [option] * bool(value) if isinstance(value, bool) else [option, str(value)]
