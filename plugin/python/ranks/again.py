# SPDX-License-Identifier: Apache-2.0
"""A second start: every rank replaces itself by the command that started it, with what the first start found.

    if (found := again.left_by_first()) is not None:
        plan = (found / "plan.json").read_text()
    elif why := again.why_not_again():
        print(f"start this run again: it cannot do so itself, for {why}")
    else:
        again.begin_again({"plan.json": text}, timeout_s=300.0)      # on every rank; does not return

The second start has the first one's command, folder and environment: a script that has called os.chdir() or
has written to os.environ does so again. It keeps the process number, the standard streams (also redirected
ones), limits, nice level and cores. Children of multiprocessing end, data loaders' workers among them;
programs that the script has started (subprocess, os.fork) go on. Standard streams, logging and C's streams
are flushed. Otherwise it is as if the process were killed: what a file or a TensorBoard writer has not
flushed is lost, and no `atexit` handler runs.

To be imported early: it records where the process was started.
"""

import atexit
import builtins
import ctypes
import fcntl
import json
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import termios
import threading
from array import array
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from ostinato.errors import Error
from torch.distributed.distributed_c10d import _get_default_store

from .launcher import agent_has_the_store
from .reports import Missing, exchanged

FOLDER = "OSTINATO_SECOND_START"  # environment: the folder that the first start left to the second
PATIENCE_S = 5.0  # with children that are to end


def _place_in_stdin() -> int:
    """More, once something has been read: the position, or minus the bytes that wait in a pipe."""
    with suppress(OSError):
        return os.lseek(0, 0, os.SEEK_CUR)
    waiting = array("i", [0])
    with suppress(OSError):  # standard input is closed
        fcntl.ioctl(0, termios.FIONREAD, waiting)
    return -waiting[0]


_CWD, _STDIN = os.getcwd(), _place_in_stdin()


class CannotStartAgain(Error, RuntimeError):
    """On every rank."""


@cache
def left_by_first() -> Path | None:
    """In a second start: the folder with what the first one found, which goes when the process ends. None in
    a first one, and in programs that a second one starts.
    """
    folder = Path(os.environ.get(FOLDER, ""))
    if not folder.name.startswith(_prefix()):
        return None
    atexit.register(_remove, folder)
    return folder


def why_not_again(further: bool = False) -> str:
    """Why this process cannot replace itself, in words that go on after "for"; "" where it can. `further`:
    once more, after its second start."""
    ray: Any = sys.modules.get("ray")
    store = _lowest_store() if dist.is_initialized() else None
    reasons = {
        "this is its second start already": left_by_first() is not None and not further,
        "it is a child of multiprocessing, which only its parent can start": multiprocessing.parent_process()
        is not None,
        "it is a notebook or an interactive session": hasattr(builtins, "get_ipython")
        or hasattr(sys, "ps1")
        or sys.flags.interactive,
        "it is embedded in a program that is not Python": not sys.orig_argv
        or not os.access(sys.executable, os.X_OK),
        "Ray has started it": ray is not None and ray.is_initialized(),
        "mpi4py has initialised MPI, which takes a process that replaces itself for a failed one": "mpi4py.MPI"
        in sys.modules,
        "the script has read standard input, which it cannot read twice": not os.isatty(0)
        and _place_in_stdin() > _STDIN,
        f"its ranks have met in a {type(store).__name__}, which keeps what the first start wrote": not isinstance(
            store, dist.TCPStore | None
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "") or _no_program()


def begin_again(files: Mapping[str, str], timeout_s: float, further: bool = False) -> NoReturn:
    """Replaces this process by itself. Every rank must call it, each with all files' texts; each gets a
    private folder with them. Raises CannotStartAgain on every rank where one of them does not come here
    within the time, or cannot replace itself.
    """
    with tempfile.TemporaryDirectory(prefix=_prefix()) as folder:  # stays where the process is replaced
        for name, text in files.items():
            Path(folder, name).write_text(text)
        meeting = _agreed(timeout_s, further)
        _end_children()
        if not meeting:
            _take_turns(timeout_s)
        if (left := left_by_first()) is not None:
            _remove(left)
        environment = _first_environment() | meeting | {FOLDER: folder}
        os.chdir(_CWD)
        _flush()
        _leave_nothing_open()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _prefix() -> str:
    """Of the folder's name. A process keeps its number in its second start."""
    return f"ostinato-second-{os.getpid()}-"


def _remove(folder: Path) -> None:
    if folder.name.startswith(_prefix()):  # and this is no forked child
        shutil.rmtree(folder, ignore_errors=True)


def _no_program() -> str:
    """Why the second start would not find what the first one ran."""
    program = _program()
    if program in ("", "-"):
        return "its program comes from standard input, which cannot be read twice"
    if program in ("-c", "-m") or (file := Path(_CWD, program)).is_file() or file.is_dir():
        return ""
    return f"its script is not to be found at {file} (start it by its whole path where it calls os.chdir() before it imports DeepSpeed)"


def _program() -> str:
    """Of Python's command line: "-c", "-m", a file or folder; "-" and "": standard input."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-" or not (option := re.match(r"-[^-cmWX]*([cmWX]?)(.?)", word)):
            return word
        if option[1] in ("c", "m"):
            return f"-{option[1]}"
        if option[1] and not option[2]:  # -X and -W may have their value in the next word
            next(words, "")
    return ""


def _lowest_store() -> Any:
    store = _get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _agreed(timeout_s: float, further: bool) -> dict[str, str]:
    """All ranks are here, and what the second start's environment says of its store. That of torchrun's agent
    outlives the ranks, with all that they have left there (a rank would find where its peers have listened):
    rank 0 then has one instead, at a port that it chooses.
    """
    port = (
        _free_port()
        if agent_has_the_store()
        and os.environ.get("MASTER_PORT") == str(getattr(_lowest_store(), "port", ""))
        else ""
    )
    try:
        texts = exchanged(
            "second start",
            json.dumps([why_not_again(further), port]),
            range(dist.get_world_size()),
            timeout_s,
        )
    except Missing as error:
        raise CannotStartAgain(f"the ranks cannot start again together: {error}") from None
    said = [json.loads(text) for text in texts]
    if refused := [
        f"rank {rank} cannot start again by itself, for {why}" for rank, (why, _) in enumerate(said) if why
    ]:
        raise CannotStartAgain(refused[0])
    return {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": said[0][1]} if port else {}


def _free_port() -> str:
    """Below those that the system gives away by itself: hardly anyone takes it between now and the second
    start."""
    while True:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port := random.SystemRandom().randrange(20_000, 30_000)))
            return str(port)


def _take_turns(timeout_s: float) -> None:
    """Rank 0, which has the store, goes once no rank waits for an answer from it, and the other ranks once it
    has gone: one that came up before that would meet the first start there. They see it by a connection
    beside torch's, which would fill the screen when it breaks.
    """
    store, rank = _lowest_store(), dist.get_rank()
    keys = [f"ostinato/second start/{other}" for other in range(1, dist.get_world_size())]
    try:
        if rank == 0:
            store.wait(keys, timedelta(seconds=timeout_s))
        else:
            with (
                suppress(ConnectionError),
                socket.create_connection((store.host, store.port), timeout_s) as line,
            ):
                store.set(keys[rank - 1], "")
                line.recv(1)
    except (TimeoutError, dist.DistError):
        raise CannotStartAgain(
            f"the ranks have not replaced themselves within {timeout_s:g} s, rank 0, which has the store, first"
        ) from None


def _end_children() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's handler raises where a data loader's worker is killed
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(PATIENCE_S)
        child.kill()
        child.join(PATIENCE_S)


def _flush() -> None:
    for flush in (
        logging.shutdown,
        sys.stdout.flush,
        sys.stderr.flush,
        lambda: ctypes.CDLL(None).fflush(None),
    ):
        with suppress(Exception):  # of a handler that a script has written, say
            flush()


def _leave_nothing_open() -> None:
    """No file or socket, and no alarm, which would end the second start before it has a handler."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) > 2:
            with suppress(OSError):  # that of the list itself is closed already
                os.set_inheritable(int(descriptor), False)


def _first_environment() -> dict[str, str]:
    """As the launcher gave it; as it is now where a library has written over it (setproctitle does)."""
    pairs = [
        os.fsdecode(entry).partition("=")
        for entry in Path("/proc/self/environ").read_bytes().split(b"\0")[:-1]
    ]
    return (
        {name: value for name, _, value in pairs}
        if pairs and all(name and sign for name, sign, _ in pairs)
        else dict(os.environ)
    )
