# SPDX-License-Identifier: Apache-2.0
"""The exceptions of ostinato, and the exit statuses of its commands.

try:
    engine, *_ = deepspeed.initialize(...)
except ostinato.errors.Error as error:      # from any part of ostinato
    print(error)                            # what is wrong, and what would be right
"""

import argparse
import contextlib
import enum
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

# Below space, DEL, U+0080 to U+009F, line separators, marks that change the direction of writing: the same as
# search/files/printable.h.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# An option of the command line, which is a keyword in Python, but not in a command that is quoted.
OPTION = re.compile(r"(?P<quoted>`ostinato [^`]*`)|--(?P<option>[a-z]+(?:-[a-z]+)*)")


class Status(enum.IntEnum):
    """Exit statuses of all commands; C++ commands have the same, from search/files/error.h."""

    DONE = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    BAD_INPUT = 3
    INFEASIBLE = 4
    STOPPED_AT_LIMIT = 5  # before anything was found or proved; under --strict: before the search ended
    CHECK_FAILED = 6
    MISSING = 7  # a required device or library is missing
    INTERRUPTED = 130


class Error(Exception):
    """The base of ostinato's exceptions: a user's mistake, or something that cannot be done. `str()` says what
    would be right."""


def counted(count: int, of: str) -> str:
    """A count in words: "1 micro-batch", "2 entries"; the same as search/files/counted.h."""
    if count == 1:
        return f"1 {of}"
    if of.endswith("y"):
        return f"{count} {of[:-1]}ies"
    return f"{count} {of}{'es' if of.endswith(('ch', 's')) else 's'}"


def size(count: float) -> str:
    """Bytes for people: "912.4 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count, 1) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def printable(text: str, newlines: bool = False) -> str:
    """Makes text from a file safe for a terminal or a log: writes control characters out, and newlines too unless
    `newlines`.

    >>> printable("a\\x1b[31m\\n")
    'a\\\\u001b[31m\\\\n'
    """
    return CONTROL.sub(lambda match: _written_out(match[0], newlines), text)


def _written_out(character: str, newlines: bool) -> str:
    if newlines and character == "\n":
        return character
    return {"\n": "\\n", "\t": "\\t"}.get(character) or f"\\u{ord(character):04x}"


def put(line: str, error: bool = False) -> None:
    """Prints a line about a run, to standard output or (`error`) to standard error, at once. No line is worth a
    run: it is lost where the script's stream is closed, full, None, or an object without flush(). It writes
    once: print() writes twice, and another thread may print in between.
    """
    with contextlib.suppress(Exception):
        stream = sys.stderr if error else sys.stdout
        stream.write(f"{line}\n")
        stream.flush()


def _with_keywords(message: str) -> str:
    return OPTION.sub(lambda match: match["quoted"] or match["option"].replace("-", "_"), message)


def fail(command: str, args: list[str], status: int, message: str) -> int:
    """Says what went wrong in a command that was given `args`, in JSON too where they ask for it (before a
    `--`); under `python -X dev` after the traceback. Returns the status."""
    if sys.flags.dev_mode and sys.exc_info()[1] is not None:
        traceback.print_exc()
    print(f"ostinato {command}: {printable(message, newlines=True)}", file=sys.stderr)
    if "--json" in args[: args.index("--") if "--" in args else None]:
        print(json.dumps({"status": status, "error": message}))
    return status


def fail_usage(command: str, args: list[str], message: str) -> int:
    """fail() for options that are wrong, as the C++ commands have it."""
    return fail(command, args, Status.USAGE, f"{message}\nTry: ostinato {command} --help")


class Parser(argparse.ArgumentParser):
    """The parser of a command: a mistake ends it with fail_usage(). `prog` is "ostinato COMMAND"."""

    def parse_known_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]  # args are never left out
        self._given = list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        sys.exit(fail_usage(self.prog.removeprefix("ostinato "), self._given, message))

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file, flush=True)  # argparse's own overlooks a full disk


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; a process that is forked meanwhile ends at once, as usual."""
    process = os.getpid()

    def interrupt(number: int, _: object) -> None:
        if os.getpid() == process:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class UsageError(Error, ValueError):
    """A keyword or an option out of range, or two that contradict each other."""

    def __init__(self, message: str):
        super().__init__(_with_keywords(message))


class InputError(Error, ValueError):
    """What is wrong in a file: `file` ("": in none) and `line` (0: the file as a whole) say where, as `str()`
    does."""

    def __init__(self, message: str, file: str = "", line: int = 0):
        super().__init__(message if file else _with_keywords(message))
        self.file, self.line = file, line


class InfeasibleError(Error):
    """No schedule fits. `str()` holds the proof."""


class UndecidedError(Error):
    """No schedule was found that fits, and no proof that there is none."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a search. `best` is what it had found until then, as the search would have returned it."""

    def __init__(self, best: object):
        super().__init__("interrupted; the best so far is in `best`")
        self.best = best
