# SPDX-License-Identifier: Apache-2.0
"""Runs a training script up to its first training step, and takes the model and one micro-batch from it.

The script is run unchanged, in this process, on DeepSpeed's real engine (engine.py), as rank 0 of a world
that is only pretended (world.py). How many ranks that world has is what the user says, else the launcher;
else the first attempt is made with 1, and the script is started again where it turns out to want another
number.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from ostinato.errors import Status, counted
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.device import Cpu, device_of_this_process
from ostinato.profile.model.archives import check_there
from ostinato.profile.model.job import Job
from ostinato.profile.script.engine import Takeover
from ostinato.profile.script.world import World

GUESSES, WINDOW, LARGEST = (2, 4, 8), 5, 4096
ABOUT_RANKS = re.compile(r"world|rank|stage|pipeline|gpu|device|nproc|parallel", re.IGNORECASE)
LIBRARIES = ("/torch/", "/deepspeed/", "/ostinato/", "/runpy.py", "<frozen")


@dataclass
class Attempt:
    """The number of ranks with which the script runs, and what earlier attempts have shown."""

    size: int = 1
    fixed: bool = False  # the user says so
    tried: list[int] = field(default_factory=list)
    guesses: list[int] | None = (
        None  # sizes left to try, where the script ended before it said how many it needs
    )
    error: str = ""  # of the first attempt, if the sizes after it are guesses
    status: int = Status.BAD_INPUT

    def needing(self, size: int) -> Attempt | None:
        """The next attempt, where the script's model needs this many ranks; None: DeepSpeed shall say what is
        wrong."""
        if self.fixed or size < 1 or size in (*self.tried, self.size):
            return None
        return Attempt(size, tried=[*self.tried, self.size])

    def guessing(self, error: ProfileError, about: str) -> Attempt | None:
        """The next attempt, where the script ended early and that may be for the number of ranks; `about`:
        what it says about it."""
        if self.fixed or (
            self.guesses is None and (self.size > 1 or self.tried or not ABOUT_RANKS.search(about))
        ):
            return None
        guesses = self.guesses
        if guesses is None:
            lines = "\n".join(line for line in about.splitlines() if ABOUT_RANKS.search(line))
            told = [int(number) for number in re.findall(r"\b\d+\b", lines) if 1 < int(number) <= LARGEST][
                ::-1
            ]
            guesses = list(dict.fromkeys([*told[:4], *GUESSES]))
        if not guesses:
            return None
        first = self if self.error else Attempt(error=str(error), status=error.status)
        return Attempt(
            guesses[0],
            tried=[*self.tried, self.size],
            guesses=guesses[1:],
            error=first.error,
            status=first.status,
        )

    def verdict(self, error: ProfileError) -> ProfileError:
        """The error of the first attempt, if later ones were guesses."""
        if self.error:
            return ProfileError(self.error, self.status)
        if not self.tried:
            return error
        again = f"the script was started again for {counted(self.size, 'rank')}; --world-size {self.size} starts it once"
        return ProfileError(f"{error} ({again})", error.status)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def become_rank_0(device: Any, size: int) -> None:
    """For the script: a launcher's other ranks have ended by now, or profile another kind of device by
    themselves."""
    if isinstance(device, Cpu):
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torchrun's store knows nothing of this world
    os.environ.setdefault("WANDB_MODE", "disabled")  # no run of this name is to appear among the user's
    if "SLURM_PROCID" in os.environ:
        os.environ.update(SLURM_PROCID="0", SLURM_NTASKS=str(size))
    os.environ.update(
        RANK="0", WORLD_SIZE=str(size), LOCAL_RANK=str(device.place.index or 0), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )  # fmt: skip


@contextmanager
def as_main(script: Path, arguments: list[str], module: bool) -> Iterator[None]:
    """sys.argv and sys.path as `python script arguments...` has them, or `python -m script arguments...`."""
    before = sys.argv, sys.path[:]
    folder = os.getcwd() if module else str(script.resolve().parent)
    sys.argv, sys.path[0:0] = [str(script), *arguments], [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def caught_exit(ended: Callable[[int], None]) -> Iterator[None]:
    """Treats os._exit() of this process (but not of one that it has forked) as a normal end of the script."""
    process, leave = os.getpid(), os._exit

    def exit_(status: int) -> None:
        if os.getpid() == process:
            ended(status)
        leave(status)

    os._exit = exit_  # type: ignore[assignment]  # that `ended` does not return is not known of it
    try:
        yield
    finally:
        os._exit = leave


def own_lines(frames: Sequence[traceback.FrameSummary]) -> str:
    """The lines of the script itself that led to its end, each with some before it."""
    texts = []
    for frame in frames:
        if frame.lineno and not any(part in frame.filename for part in LIBRARIES):
            texts += [
                linecache.getline(frame.filename, n)
                for n in range(max(1, frame.lineno - WINDOW), frame.lineno + 1)
            ]
    return "".join(texts[-4 * WINDOW :])


class ScriptRun:
    """One attempt. `host.take`, `fail` and `restart` do not return; `again` starts the next attempt and does
    not return either."""

    def __init__(
        self,
        script: Path,
        attempt: Attempt,
        take: Callable[[Job], NoReturn],
        fail: Callable[[ProfileError], NoReturn],
        again: Callable[[Attempt], NoReturn],
    ):
        self.script, self.attempt = script, attempt
        self._take, self._fail, self._again = take, fail, again
        self.device = device_of_this_process()
        self.world = World(attempt.size)
        self.takeover = Takeover(self.world, self)

    def take(self, job: Job) -> NoReturn:
        job.name = self.script.stem if self.script.suffix == ".py" else self.script.name.rpartition(".")[2]
        job.device = self.device
        job.ranks = self.world.size
        self._take(job)

    def fail(self, error: ProfileError) -> NoReturn:
        self._fail(error)

    def restart(self, size: int) -> None:
        """Returns if that would not help: DeepSpeed then says what is wrong."""
        following = self.attempt.needing(size)
        if following is not None:
            self._again(following)

    def ended(self, error: ProfileError, about: str) -> NoReturn:
        """Before its first training step."""
        if self.takeover.evaluated is not None:
            self.take(self.takeover.evaluated())
        following = None if self.takeover.reached else self.attempt.guessing(error, about)
        if following is not None:
            self._again(following)
        self._fail(error if self.takeover.reached else self.attempt.verdict(error))

    def exited(self, status: int) -> NoReturn:
        about = own_lines(traceback.extract_stack()[:-2]) if status else ""
        self.ended(self._status_error(status), about)

    def _status_error(self, code: Any) -> ProfileError:
        if code in (None, 0):
            return ProfileError(
                f"{self.script} ended without a training step on DeepSpeed's engine: there is nothing to profile"
            )
        status = code if isinstance(code, int) else Status.BAD_INPUT
        return ProfileError(f"{self.script} ended with {code!r} before its first training step", status)

    def run(self, arguments: list[str], module: bool) -> NoReturn:
        become_rank_0(self.device, self.attempt.size)
        with (
            self.world.pretended(),
            self.takeover.installed(),
            caught_exit(self.exited),
            as_main(self.script, arguments, module),
        ):
            try:
                if module:
                    runpy.run_module(str(self.script), run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(str(self.script), run_name="__main__")
                error, about = self._status_error(None), ""
            except ProfileError:
                raise
            except SystemExit as end:
                error = self._status_error(end.code)
                about = own_lines(traceback.extract_tb(end.__traceback__))
                if end.code in (None, 0) or "argparse.py" in str(
                    traceback.extract_tb(end.__traceback__)[-1].filename
                ):
                    about = ""
            except Exception as raised:
                error, about = self._error_of(raised)
            self.ended(error, about)

    def _error_of(self, raised: Exception) -> tuple[ProfileError, str]:
        """The message for an exception that ended the script, and what it shows about the number of ranks."""
        frames = traceback.extract_tb(raised.__traceback__)
        # -m, and no line of the module has run.
        if isinstance(raised, ImportError) and frames[-1].filename == "<frozen runpy>":
            return ProfileError(
                f"-m {self.script}: {raised} (looked in {os.getcwd()} and in Python's path)"
            ), ""
        traceback.print_exception(raised)  # the script's own, to standard error
        error = ProfileError(
            f"{self.script} raised {type(raised).__name__} before its first training step: {raised}"
        )
        if isinstance(raised, (ImportError, SyntaxError, NameError, OSError)):
            return error, ""
        return error, own_lines(frames) + str(raised)


class _Ended(BaseException):
    """Ends the script that capture() runs: not an Exception, so that handlers of the script's own let it
    through."""

    def __init__(self, result: Any):
        super().__init__()
        self.result = result


def _end(result: Any) -> NoReturn:
    raise _Ended(result)


def check_script(script: Path, module: bool) -> None:
    if not module:
        check_there(script)
    if not module and script.suffix in (".json", ".toml"):
        raise ProfileError(f"{script} is not a Python script: give the one that trains")


def capture(script: Path, arguments: list[str], size: int | None = None, module: bool = False) -> Job:
    """Runs the script until its first training step, in this process and with `size` ranks (None: as many as
    it wants). Meant for scripts that let a BaseException through; the command profiles inside the step
    instead, and ends the process."""
    check_script(script, module)
    result: Any = Attempt(size or 1, fixed=size is not None)
    while isinstance(result, Attempt):
        try:
            ScriptRun(script, result, _end, _end, _end).run(arguments, module)
        except _Ended as ended:
            result = ended.result
        finally:
            if isinstance(result, Attempt):
                forget_processes()
    if isinstance(result, ProfileError):
        raise result
    return result


def forget_processes() -> None:
    """No process group, and DeepSpeed does not know of one."""
    from deepspeed.comm import comm

    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
    comm.cdb = None
