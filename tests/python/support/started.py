# SPDX-License-Identifier: Apache-2.0
"""Starts a script on ranks as a launcher would, but from a process that has imported DeepSpeed. So does each
further start: the rank leaves what it would give to execve(), and another process goes on with it. With `real`,
ranks replace themselves, and measure what a block costs, which takes two more processes.

run = launched(script, ["--deepspeed_config", "ds.json"], folder, stdin="")
run.status, run.said, run.seconds
"""

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from support import worlds

TIMEOUT = 120  # seconds
GRACE = 10  # once one rank has failed
AGAIN = 75  # status of a rank that goes on in another process
_exit = os._exit  # which `ostinato profile` replaces


@dataclass(frozen=True)
class Run:
    status: list[int | None]
    said: str
    seconds: float


def launched(
    script: Path,
    arguments: list[str],
    folder: Path,
    stdin: str = "",
    environment: dict | None = None,
    real: bool = False,
    ranks: int = 2,
) -> Run:
    """All ranks print into one file, and run in the folder."""
    port, began = worlds.free_port(), time.time()
    (folder / "input").write_text(stdin)

    def start(rank: int, variables: dict, before: int = 0):
        process = worlds.forked().Process(
            target=_rank, args=(rank, str(script), arguments, str(folder), variables, before, real)
        )
        process.start()
        return process

    given = {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)} | (environment or {})
    started = [
        start(rank, os.environ | worlds.environment(rank, ranks, port) | given) for rank in range(ranks)
    ]
    limit = time.time() + TIMEOUT
    while time.time() < limit:
        for rank, process in enumerate(started):
            if process.exitcode == AGAIN:
                started[rank] = start(rank, json.loads((folder / f"again.{rank}").read_text()), process.pid)
        if not any(process.is_alive() for process in started):
            break
        if any(process.exitcode not in (None, 0, AGAIN) for process in started):
            limit = min(limit, time.time() + GRACE)
        time.sleep(0.05)
    status = [process.exitcode for process in started]
    for process in started:
        process.kill()
        process.join()
    return Run(status, (folder / "printed").read_text(), time.time() - began)


def _rank(
    rank: int, script: str, arguments: list[str], folder: str, variables: dict, before: int, real: bool
) -> None:
    """`before`: the ID of the process that this one goes on for."""
    os.environ.clear()
    os.environ |= variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
    os.chdir(folder)
    _redirect(folder)
    gc.freeze()  # what is loaded, which each collection would visit
    _pretend_to_be_started(script, arguments)
    if before:
        _take_over(before)
    if not real:
        worlds.costs_of_blocks()
        os.execve = lambda _program, _words, left: _leave(Path(folder, f"again.{rank}"), left)
    _run(script)


def _leave(file: Path, variables: dict) -> None:
    file.write_text(json.dumps(variables))
    _exit(AGAIN)


def _take_over(before: int) -> None:
    """The name of the folder that the first start left, if it did, has the ID of its process."""
    from ostinato.ranks import again

    if again.FOLDER not in os.environ:  # `ostinato profile` leaves none
        return
    folder = Path(os.environ[again.FOLDER])
    again.folder_of_first_start.cache_clear()  # of the process that this one is forked from
    os.environ[again.FOLDER] = str(folder.rename(str(folder).replace(f"-{before}-", f"-{os.getpid()}-")))


def _run(script: str) -> None:
    """With the end that Python has where multiprocessing has not started it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _redirect(folder: str) -> None:
    printed = os.open(f"{folder}/printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    given = os.open(f"{folder}/input", os.O_RDONLY)
    for descriptor, into in ((given, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, into)
    sys.stdin = open(0, closefd=False)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))


def _pretend_to_be_started(script: str, arguments: list[str]) -> None:
    """By the command that a second start repeats."""
    from ostinato.ranks import again

    sys.argv = [script, *arguments]
    sys.orig_argv = [sys.executable, "-u", *sys.argv]
    sys.path.insert(0, str(Path(script).parent))
    environment = dict(os.environ)
    again._first_environment = lambda: environment
    again._CWD, again._STDIN = os.getcwd(), again._place_in_stdin()
    multiprocessing.process._parent_process = None
    multiprocessing.set_start_method("fork", force=True)
