# SPDX-License-Identifier: Apache-2.0
"""The `ostinato` command: one name for its two halves.

What runs models is Python and imported only when it is asked for; everything else, `--help` too, is C++
(`bindings/cli`) and never imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from ostinato.errors import Status, fail

PYTHON_COMMANDS = {
    "profile": "ostinato.profile",
    "report": "ostinato.report",
    "checkpoint": "ostinato.checkpoint",
    "doctor": "ostinato.doctor",
}
CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
CLOSED_PIPE = 128 + signal.SIGPIPE  # as a shell calls what a closed pipe has ended
PLANNERS = ("plan", "partition")  # --devices launcher: the ranks of torchrun, deepspeed or Slurm
# What takes no value there, beside the flags in the table of options.
FLAGS = ("help", "json", "keep-order", "published-program", "quiet", "strict", "verbose")


@contextlib.contextmanager
def default_signals():
    """Ctrl-C and a closed pipe end a C++ command at once, as they end any other program. The search takes
    Ctrl-C for itself."""
    old = {}
    for number in (signal.SIGINT, signal.SIGPIPE):
        with contextlib.suppress(ValueError):  # not the main thread
            old[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def run_cpp(args: list[str], launcher: str = "") -> int:
    """`launcher`: the device file that `--devices launcher` stands for."""
    from ostinato import _search

    sys.stdout.flush()
    sys.stderr.flush()
    with default_signals():
        return _search.main([os.fsencode(arg) for arg in args], launcher)  # a file's name need not be UTF-8


def run_python(command: str, args: list[str]) -> int:
    try:
        status = importlib.import_module(PYTHON_COMMANDS[command]).main(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read has gone: `ostinato report out/trace | head -1`
        discard_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in CANNOT_WRITE:
            raise
        discard_output()
        return fail(command, args, Status.INTERNAL_ERROR, "cannot write to standard output")
    except KeyboardInterrupt:
        return fail(command, args, Status.INTERRUPTED, "interrupted")
    except ModuleNotFoundError as error:
        return fail(
            command,
            args,
            Status.MISSING,
            f"the Python package {error.name} is missing: pip install {error.name}",
        )
    except (
        ImportError
    ) as error:  # a module of ours that was not built, or one that was built for another torch
        return fail(command, args, Status.MISSING, str(error))
    except MemoryError:
        return fail(command, args, Status.INTERNAL_ERROR, "out of memory")


def discard_output() -> None:
    """What Python still writes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """A daemon, or `>&-`, may start a process without them; the first file that it opens would then take
    their place, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def run_launched(args: list[str]) -> int:
    """Every rank comes here, and rank 0 alone plans."""
    try:
        from ostinato.devices import describe

        text = describe(next((Path(word) for option, word in parsed(args) if not option), None))
    except ImportError as error:
        return fail(args[0], args, Status.MISSING, str(error))
    except ValueError as error:  # nothing was launched
        return fail(args[0], args, Status.USAGE, str(error))
    return 0 if text is None else run_cpp(args, text)


def parsed(args: list[str]) -> Iterator[tuple[str, str]]:
    """The words of a planner as CLI11 reads them: options with their values, and "" with what is none's."""
    from ostinato import _search

    of_table = (key.replace("_", "-") for _, key, default in _search.option_table() if default == "false")
    flags = {*FLAGS, *of_table}
    words = iter(args[1:])
    for word in words:
        if word == "--":
            yield from (("", rest) for rest in words)
        elif word.startswith("--"):
            option, _, value = word[2:].partition("=")
            yield option, value if value or option in flags else next(words, "")
        elif word.startswith("-"):
            # Letters of flags, and of the one option that takes a value: -qo FILE, -oFILE.
            _, output, value = word.partition("o")
            yield word, next(words, "") if output and not value else value
        else:
            yield "", word


def names_launcher(args: list[str]) -> bool:
    return ("devices", "launcher") in parsed(args)


def main(argv: list[str] | None = None) -> int:
    open_closed_streams()
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] in PYTHON_COMMANDS:
        return run_python(args[0], args[1:])
    if args and args[0] in PLANNERS and names_launcher(args):
        return run_launched(args)
    return run_cpp(args)


def profile() -> int:
    """The command `ostinato-profile`: the same as `ostinato profile`."""
    return main(["profile", *sys.argv[1:]])
