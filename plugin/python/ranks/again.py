# SPDX-License-Identifier: Apache-2.0
"""A second start: every rank replaces itself by the command that started it, and keeps what the first start found.

    if (found := again.folder_of_first_start()) is not None:
        plan = (found / "plan.json").read_text()
    elif why := again.why_not_again():
        print(f"start this run again: it cannot do so itself, because {why}")
    else:
        again.begin_again({"plan.json": text}, timeout_s=300.0)      # on every rank; does not return

The second start has the first one's command, folder and environment: a script that called os.chdir() or wrote to
os.environ does so again. It keeps the process ID, the standard streams (also redirected ones), limits, nice level
and cores. Children of multiprocessing end, including workers of data loaders; programs that the script has started
(subprocess, os.fork) go on. Standard streams, logging and C's streams are flushed. Otherwise the process ends as if
it were killed: what a file or a TensorBoard writer has not flushed is lost, and no `atexit` handler runs.

Import it early: it records where the process was started.
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
import zlib
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from ostinato.errors import Error
from torch.distributed.distributed_c10d import _get_default_store

from .launcher import agent_has_the_store
from .reports import Missing, exchanged

FOLDER = "OSTINATO_SECOND_START"  # environment: the folder that the first start left for the second
PORTS = "OSTINATO_SECOND_PORTS"  # environment: of the launcher's store, and of the second start's
PATIENCE_S = 5.0  # for children to end


def _place_in_stdin() -> int:
    """Grows when something is read: the position, or minus the bytes that wait in a pipe."""
    with suppress(OSError):
        return os.lseek(0, 0, os.SEEK_CUR)
    waiting = array("i", [0])
    with suppress(OSError):  # standard input is closed
        fcntl.ioctl(0, termios.FIONREAD, waiting)
    return -waiting[0]


_CWD, _STDIN = os.getcwd(), _place_in_stdin()


class CannotStartAgain(Error, RuntimeError):
    """On every rank."""


class Refused(CannotStartAgain):
    """Before anything has changed: the ranks can go on."""


@cache
def folder_of_first_start() -> Path | None:
    """In a second start: the folder with what the first one found, which is removed when the process ends. None
    in a first start, and in programs that a second start runs.
    """
    folder = Path(os.environ.get(FOLDER, ""))
    if not folder.name.startswith(_prefix()):
        return None
    atexit.register(_remove, folder)
    return folder


def meet() -> None:
    """To be called before torch's start. A script that sets MASTER_PORT itself has now written the port of the
    launcher's store."""
    launchers, _, own = os.environ.get(PORTS, "").partition(" ")
    if own and os.environ.get("MASTER_PORT") == launchers and folder_of_first_start() is not None:
        os.environ["MASTER_PORT"] = own


def why_not_again(further: bool = False) -> str:
    """Why this process cannot replace itself, in words to follow "because"; "" where it can. `further`: once
    more, after its second start."""
    ray: Any = sys.modules.get("ray")
    store = _lowest_store() if dist.is_initialized() else None
    reasons = {
        "this is already its second start": folder_of_first_start() is not None and not further,
        "it is a child of multiprocessing, which only its parent can start": multiprocessing.parent_process()
        is not None,
        "it is a notebook or an interactive session": hasattr(builtins, "get_ipython")
        or hasattr(sys, "ps1")
        or sys.flags.interactive,
        "it is embedded in a program that is not Python": not sys.orig_argv
        or not os.access(sys.executable, os.X_OK),
        f"{_CWD}, where it was started, is gone": not os.path.isdir(_CWD),
        "Ray has started it": ray is not None and ray.is_initialized(),
        "mpi4py has initialised MPI, which would take a process that replaces itself for a failed one": "mpi4py.MPI"
        in sys.modules,
        "the script has read standard input, which cannot be read twice": not os.isatty(0)
        and _place_in_stdin() > _STDIN,
        f"its ranks meet in a {type(store).__name__}, which would keep what the first start wrote": not isinstance(
            store, dist.TCPStore | None
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "") or _no_program()


File = str | Callable[[Path], None]  # its text, or what writes it


def begin_again(files: Mapping[str, File], timeout_s: float, further: bool = False) -> NoReturn:
    """Replaces this process by itself. Every rank must call it with all files, and gets a private folder with
    them. Raises CannotStartAgain on every rank where one does not call it in time or cannot replace itself, and
    Refused where one knows that beforehand, as it cannot write its files.
    """
    _remove_abandoned()
    with ExitStack() as stays:  # where the process is replaced
        folder, environment, start, why = "", {}, -1, ""
        # What may fail on one rank comes before the ranks agree.
        try:
            folder = stays.enter_context(tempfile.TemporaryDirectory(prefix=_prefix()))
            write(files, Path(folder))
            environment, start = _first_environment(), os.open(_CWD, os.O_RDONLY | os.O_DIRECTORY)
            stays.callback(os.close, start)
        except Exception as error:  # torch's, where a disk is full, is a RuntimeError
            why = (
                f"{type(error).__name__}: {error} (TMPDIR chooses where it leaves files for its second start)"
            )
        meeting = _agreed(timeout_s, why or why_not_again(further))
        _end_children()
        if not meeting:
            _take_turns(timeout_s)
        if (old := folder_of_first_start()) is not None:
            _remove(old)
        _flush()
        _leave_nothing_open()
        try:
            os.fchdir(start)
            os.execve(
                sys.executable, [sys.executable, *sys.orig_argv[1:]], environment | meeting | {FOLDER: folder}
            )
        except OSError as error:
            raise CannotStartAgain(
                f"rank {dist.get_rank()} could not start {sys.executable} again: {error}; start the run again"
            ) from None


def write(files: Mapping[str, File], folder: Path) -> None:
    for name, made in files.items():
        if isinstance(made, str):
            (folder / name).write_text(made)
        else:
            made(folder / name)


def _prefix() -> str:
    """Prefix of the folder's name. A process keeps its ID in its second start."""
    return f"{_prefix_here()}{os.getpid()}-"


@cache
def _prefix_here() -> str:
    """With what an ID is of: hosts may share a folder for temporary files, and so may containers."""
    where = socket.gethostname()
    with suppress(OSError):
        boot, own = Path("/proc/sys/kernel/random/boot_id").read_text(), os.stat("/proc/self/ns/pid").st_ino
        where = f"{boot} {own}"
    return f"ostinato-second-{zlib.crc32(where.encode()):08x}-"


def _remove_abandoned() -> None:
    """Folders of this user's processes that a signal has ended."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_prefix_here()}*"):
            process = folder.name.removeprefix(_prefix_here()).partition("-")[0]
            if process.isdecimal() and not _lives(int(process)) and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no ID
        return True
    return True


def _remove(folder: Path) -> None:
    if folder.name.startswith(_prefix()):  # else this is a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _no_program() -> str:
    """Why the second start would not find the program of the first; "" where it would."""
    program = _program()
    if program in ("", "-"):
        return "its program comes from standard input, which cannot be read twice"
    if program in ("-c", "-m") or (file := Path(_CWD, program)).is_file() or file.is_dir():
        return ""
    return f"its script is not at {file} (if it calls os.chdir() before it imports DeepSpeed, start it by its full path)"


def _program() -> str:
    """From Python's command line: "-c", "-m", a file or folder; "-" and "": standard input."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-" or not (option := re.match(r"-[^-cmWX]*([cmWX]?)(.?)", word)):
            return word
        if option[1] in ("c", "m"):
            return f"-{option[1]}"
        # -X and -W may have their value in the next word.
        if word == "--check-hash-based-pycs" or (option[1] and not option[2]):
            next(words, "")
    return ""


def _lowest_store() -> Any:
    store = _get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _agreed(timeout_s: float, mine: str) -> dict[str, str]:
    """Waits for all ranks, and tells them why this one cannot start again ("": it can); returns the environment
    variables of the second start's store. The store of torchrun's agent outlives the ranks, and would keep what they
    wrote (a rank would find old addresses of its peers): then rank 0 holds a new one, at a port that it chooses.
    """
    port = (
        _free_port()
        if agent_has_the_store()
        and os.environ.get("MASTER_PORT") == str(getattr(_lowest_store(), "port", ""))
        else ""
    )
    try:
        texts = exchanged("second start", json.dumps([mine, port]), range(dist.get_world_size()), timeout_s)
    except Missing as error:
        raise CannotStartAgain(f"the ranks cannot start again together: {error}") from None
    said = [json.loads(text) for text in texts]
    if refused := [
        f"rank {rank} cannot start again by itself, because {why}"
        for rank, (why, _) in enumerate(said)
        if why
    ]:
        raise Refused(refused[0])
    if not port:
        return {}
    own = said[0][1]
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "MASTER_PORT": own,
        PORTS: f"{os.environ['MASTER_PORT']} {own}",
    }


def _free_port() -> str:
    """A port below the range that the system assigns: hardly any process takes it before the second start."""
    while True:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port := random.SystemRandom().randrange(20_000, 30_000)))
            return str(port)


def _take_turns(timeout_s: float) -> None:
    """Rank 0, which has the store, leaves once no rank waits for an answer from it; the other ranks leave once
    rank 0 has left, as they would otherwise meet its first start. They notice that through a separate connection:
    torch's would fill the screen when it breaks.
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
            f"the ranks did not replace themselves within {timeout_s:g} s (rank 0, which has the store, must be first)"
        ) from None


def _end_children() -> None:
    if threading.current_thread() is threading.main_thread():
        # Torch's handler raises when a data loader's worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
        lambda: sys.stdout.flush(),
        lambda: sys.stderr.flush(),
        lambda: ctypes.CDLL(None).fflush(None),
    ):
        with suppress(Exception):  # from a handler or a stream of the script
            flush()


def _leave_nothing_open() -> None:
    """Closes files and sockets on exec, and cancels an alarm, which would end the second start before it has a handler."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) > 2:
            with suppress(OSError):  # the descriptor of the list itself is already closed
                os.set_inheritable(int(descriptor), False)


def _first_environment() -> dict[str, str]:
    """The environment from the launcher; the current one where a library has overwritten it (setproctitle does)."""
    pairs = [
        os.fsdecode(entry).partition("=")
        for entry in Path("/proc/self/environ").read_bytes().split(b"\0")[:-1]
    ]
    return (
        {name: value for name, _, value in pairs}
        if pairs and all(name and sign for name, sign, _ in pairs)
        else dict(os.environ)
    )
