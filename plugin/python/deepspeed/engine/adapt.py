# SPDX-License-Identifier: Apache-2.0
"""Plans again while the run goes on. Every so often rank 0 compares measured block times with the plan; where a
device has become slow, or fast again, or layers take longer or shorter than profiled, it searches a new plan
beside the training, with the measured times.

    run.adapt = Adapt(asked, search, run.program, device, paths, moved, move)
    run.adapt.step(executor, step)      # after every step, on every rank
    run.adapt.saved(step)               # after a checkpoint, on every rank; does not return if all ranks start again with the new plan

A new plan expects the measured times: only a further change leads to a further plan, so layers do not move back
and forth.
"""

import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping

import torch.distributed as dist
from ostinato.errors import Error
from ostinato.files import write_text
from ostinato.measured import CHANGED, Measured, replanned, speeds_in
from ostinato.objects import Placement, Profile
from ostinato.groups import everyones
from pydantic import BaseModel

from ..errors import OstinatoError
from ..section import plans
from ..section.config import Adapting, Paths, Search
from ..section.search import ADAPTED, BASE, BASE_DEVICES, FILES, PLACEMENT, PLAN, PROFILE
from ..tell.announce import say
from ..tell.drift import WARM_UP, BlockTimes, Comparisons, slow_devices

DEVICES = "devices.toml"  # with the measured speeds

# (texts of the new plan's files by name, what the next start must know): returns only where the ranks cannot
# start again, with the reason
Move = Callable[[Mapping[str, str], "Moved"], str]


class Moved(BaseModel):
    """What a start knows of the move before it. `step`: of the checkpoint; `took`: ns of the pipeline's part
    of a step before the move."""

    step: int
    took: float


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
    ):
        assert paths.output is not None
        self._asked, self._search, self._program, self._move, self._moved = (
            asked,
            search,
            program,
            move,
            moved,
        )
        self._paths, self._output = paths, paths.output
        self._times = BlockTimes(program, device, asked.every)
        self._ends = deque[int](maxlen=asked.every)
        self._steps = -WARM_UP
        self._took = 0.0  # ns of the pipeline's part of recent steps
        self._next: dict[str, str] = {}  # a better plan, the same on all ranks
        # On rank 0:
        self._comparisons = Comparisons()
        self._planning: subprocess.Popen | None = None

    def begins(self, step: int) -> None:
        """To be called before the first step. Raises OstinatoError where the script does not continue from
        the checkpoint after which all ranks restarted."""
        if self._moved is not None and self._moved.step != step:
            raise OstinatoError(
                f"all ranks restarted after the checkpoint of step {self._moved.step}, but the script begins with step {step + 1}: let it load its "
                'latest checkpoint when it starts, or remove "move" from "adapt"'
            )

    def step(self, program, executor, step: int) -> None:
        """`program`: that it ran; with another number of micro-batches than configured nothing is compared."""
        if program is not self._program:
            return
        self._steps += 1
        if self._steps <= 0:
            return
        records = executor.records()
        self._times.add(records)
        self._ends.append(max(end for _, _, end in records))
        if self._steps % self._asked.every == 0:
            self._compare(step)

    def _compare(self, step: int) -> None:
        decided = self._decided() if dist.get_rank() == 0 else None
        everyone = everyones((self._times.rows(), statistics.median(self._ends), decided))
        self._took = max(end for _, end, _ in everyone)
        if self._moved is not None and self._steps == self._asked.every:
            now, before = self._took / 1e6, self._moved.took / 1e6
            say(
                f"measured since the move: {before / now:.2f} times as fast ({before:.1f} -> {now:.1f} ms a step, without the optimizer)"
            )
        if (decided := everyone[0][2]) is not None:
            self._next = decided
        if dist.get_rank() == 0:
            self._look(Measured.of_rows(row for of_rank, _, _ in everyone for row in of_rank), step)

    def _look(self, found: Measured, step: int) -> None:
        """Acts on what two comparisons in a row agree on, which is not noise."""
        seen = self._comparisons
        if not seen.settled(found):
            return
        told = slow_devices(found)
        if abs(found.overall - 1) > CHANGED:
            told.append(f"all blocks take {found.overall:.2f} times as long as planned")
        if not told:
            seen.as_planned(step)
        elif self._planning is None and seen.is_news(found):
            seen.told = found
            say(f"step {step}: {', '.join(told)}; searching a new plan in the background")
            try:
                self._plan(found)
            except (Error, OSError) as error:
                say(f'"adapt" cannot search a new plan: {error}')

    def _plan(self, found: Measured) -> None:
        """Starts a search in a low-priority process, which leaves the cores to the training."""
        folder = self._output / ADAPTED
        base = folder / BASE
        placement, profile = (
            Placement.from_file(self._output / PLACEMENT),
            Profile.from_file(base if base.is_file() else self._output / PROFILE),
        )
        if placement.sha256 != self._program.placement_sha256:
            raise OstinatoError(f"{self._output / PLACEMENT} is not the placement of this run")
        speeds = speeds_in((folder / BASE_DEVICES).read_text()) if (folder / BASE_DEVICES).is_file() else ()
        for name, text in zip(
            (PROFILE, DEVICES), replanned(found, placement.to_dict(), profile.to_dict(), speeds), strict=True
        ):
            write_text(folder / name, text)
        options = {"threads": 1} | self._search.model_dump(
            exclude_none=True, exclude=Search.RESTRICT | {"device_memory", "inference"}
        )
        given = [word for key, value in options.items() for word in _as_option(key, value)]
        command = [
            "nice",
            "-n",
            "19",
            sys.executable,
            "-m",
            "ostinato",
            "plan",
            str(folder / PROFILE),
            "--devices",
            str(folder / DEVICES),
        ]
        command += ["--micro-batches", str(self._program.micro_batches), "--all-devices", "--quiet", *given]
        command += ["--output", str(folder / PLAN), "--placement-output", str(folder / PLACEMENT)]
        with open(folder / "said", "w") as said:
            self._planning = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def _decided(self) -> dict[str, str] | None:
        """On rank 0: the files of a new plan that is worth a move, by name; {}: the last one no longer is;
        None: nothing new."""
        if self._comparisons.told is None and self._next:
            return {}
        if self._planning is None or (status := self._planning.poll()) is None:
            return None
        self._planning = None
        try:
            return self._judged(status)
        except (OstinatoError, OSError) as error:  # the other ranks wait for an answer
            say(f'"adapt" found no new plan: {error}')
            return None

    def _judged(self, status: int) -> dict[str, str] | None:
        """The result of the search, which ended with `status`."""
        folder = self._output / ADAPTED
        if status:
            raise OstinatoError((folder / "said").read_text().strip())
        predicted = plans.lower(
            self._paths.model_copy(update={"plan": folder / PLAN, "placement": folder / PLACEMENT})
        ).predicted
        gains = f"{self._took / predicted:.2f} times as fast: {self._took / 1e6:.1f} -> {predicted / 1e6:.1f} ms a step"
        if self._took < predicted * (1 + self._asked.gain):
            say(f'a new plan would be {gains}: less than "gain", so the current plan stays')
            return None
        then = (
            "all ranks restart with it after the next checkpoint"
            if self._asked.move
            else f"it is in {folder}"
        )
        say(f"a new plan is expected to be {gains}; {then}")
        return {name: (folder / name).read_text() for name in (*FILES, PROFILE, DEVICES)}

    def saved(self, step: int) -> None:
        """All ranks must call it, once the checkpoint of this step is complete."""
        if not self._next or not self._asked.move:
            return
        files, self._next = self._next, {}
        profile, devices = files.pop(PROFILE), files.pop(DEVICES)
        if dist.get_rank() == 0:
            for name, text in (
                files | {f"{ADAPTED}/{BASE}": profile, f"{ADAPTED}/{BASE_DEVICES}": devices}
            ).items():
                write_text(self._output / name, text)
        self.close()
        if why := self._move(files, Moved(step=step, took=self._took)):
            say(f"the ranks cannot restart with the new plan, because {why}; it is in {self._output}")

    def close(self) -> None:
        if self._planning is not None:
            self._planning.kill()
            self._planning.wait()
            self._planning = None


def _as_option(key: str, value: object) -> list[str]:
    option = f"--{key.replace('_', '-')}"
    return [option] * bool(value) if isinstance(value, bool) else [option, str(value)]
