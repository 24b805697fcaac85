# SPDX-License-Identifier: Apache-2.0
"""Whole files out: written beside their place, flushed to the disk, and renamed, so that nothing is ever half
there.

Pipes and devices (/dev/stdout, /dev/null) are written in place, and through a symbolic link the file behind
it is replaced. Who may read a file stays as it was; of a new one the umask says it. The C++ commands do the
same (search/files/file.cpp).
"""

import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ADAPTED = "adapted"  # a folder in "output" (adapt)
# In it: what the plan in "output" was made from, if it is not the profile beside it, and speeds of devices.
BASE, BASE_DEVICES = "base.json", "base-devices.toml"
OWN_FILES = "/proc/self/fd"
BEGIN, END = ".ostinato-", ".tmp"


def is_special(path: Path) -> bool:
    """Whether it is a pipe or a device: a rename would put a regular file where it was."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def write_text(path: Path, text: str) -> None:
    """Replaces the file as a whole; makes its folder where it is missing. Raises OSError."""
    path = Path(path)
    if is_special(path):
        with open(path, "wb") as special:
            special.write(text.encode())
        return
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    beside = _name_beside(target)
    handle, has_name = _open_beside(beside)
    try:
        with os.fdopen(handle, "wb") as file:
            _keep_mode(handle, target)
            file.write(text.encode())
            file.flush()
            os.fsync(handle)
            if not has_name:  # src_dir_fd: else the link in /proc would be linked, not what it leads to
                os.link(f"{OWN_FILES}/{handle}", beside, src_dir_fd=handle)
            os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """For writers that need a file name: yields a name in a folder beside `path`, and renames that file to `path`
    at the end of the with block. Writers may themselves write a temporary file and rename it, as safetensors does.
    """
    if is_special(path):
        yield Path(path)
        return
    target = _target(path)
    _remove_abandoned(target.parent)
    folder, held = _folder_beside(target)
    try:
        written = folder / target.name
        yield written
        with open(written, "rb") as file:
            _keep_mode(file.fileno(), target)
            os.fsync(file.fileno())
        os.replace(written, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `path`, which must not exist, at the end of the with block; after an
    error nothing is left."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    beside, held = _folder_beside(target)
    try:
        made = beside / "made"
        made.mkdir()
        yield made
        for file in (file for file in made.rglob("*") if file.is_file()):
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        os.rename(made, target)  # may replace an empty folder, but nothing else
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        os.close(held)


def _target(path: Path) -> Path:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder", str(path))
    return target


def _keep_mode(handle: int, target: Path) -> None:
    with suppress(FileNotFoundError):
        os.fchmod(handle, target.stat().st_mode & 0o777)


def _name_beside(target: Path) -> Path:
    return target.with_name(f"{BEGIN}{secrets.token_hex(8)}{END}")


def _folder_beside(target: Path) -> tuple[Path, int]:
    while True:
        folder = _name_beside(target)
        folder.mkdir(0o700)  # private, as its final permissions are not known yet
        with suppress(FileNotFoundError):  # another process removed it as abandoned, before it was locked
            handle = _locked(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
            if folder.exists():
                return folder, handle
            os.close(handle)


def _open_beside(path: Path) -> tuple[int, bool]:
    """A file to write, and whether it already has a name: if the file system supports files without a name, a
    process that is killed while writing leaves nothing behind.
    """
    if hasattr(os, "O_TMPFILE") and os.access(OWN_FILES, os.X_OK):
        with suppress(OSError):
            return _locked(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)), False
    return _open_named(path), True


def _open_named(path: Path) -> int:
    while True:
        handle = _locked(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # another process removed it as abandoned, before it was locked


def _locked(handle: int) -> int:
    with suppress(OSError):  # without locks no process removes it, either
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _remove_abandoned(folder: Path) -> None:
    """Removes what killed processes have left: a process that still writes holds a lock on its file or folder."""
    for path in folder.glob(f"{BEGIN}*{END}"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(handle)
                if status.st_uid == os.geteuid() and (
                    stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
                ):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()
            finally:
                os.close(handle)


def no_file(path: Path) -> str:
    """What is at a path where os.path.isfile() (which, unlike Path.is_file(), takes a name of any length) found no
    file."""
    return "this is a folder, not a file" if os.path.isdir(path) else "no such file"


def why_not_writable(path: Path) -> str:
    """Why write_text() would fail, in words; empty: nothing found that would make it fail. Leaves nothing
    behind."""
    if is_special(path):
        return "" if os.access(path, os.W_OK) else "cannot be written"
    target = Path(os.path.realpath(path))
    if target.is_dir():
        return "is a folder"
    folder = target.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"nothing can be written to {folder}: {error.strerror}"


def why_not_all(outputs: Mapping[str, Path | None]) -> str:
    """Which of a command's outputs cannot be written, and why; empty: all can. To be called before the work."""
    for option, path in outputs.items():
        if path is not None and (reason := why_not_writable(path)):
            return f"{option} {path}: {reason}"
    return ""


def why_not_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path]) -> str:
    """Which output is the same file as another output, or as an input; empty: none. Like check_apart() of the C++
    commands."""
    read = list(inputs)
    seen: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None or is_special(path):
            continue
        for other, place in seen.items():
            if is_same_file(path, place):
                return f"{option} {path}: {other} writes the same file"
        if any(is_same_file(path, one) for one in read):
            return f"{option} {path} would overwrite an input file: give another name"
        seen[option] = path
    return ""


def is_same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:  # one does not exist yet
        return os.path.realpath(a) == os.path.realpath(b)


class Diagnostic:
    """A file that describes a run, but is not worth stopping it: if it cannot be written, says so once, and the
    run goes on."""

    def __init__(self, path: Path):
        self.path = path
        self._lost = False

    def write(self, text: str) -> bool:
        """Whether it could be written."""
        try:
            write_text(self.path, text)
        except OSError as error:
            if not self._lost:
                with suppress(Exception):  # the log may be on the same disk, or closed
                    print(
                        f"ostinato: {self.path} could not be written: {error.strerror or error}; the run goes on",
                        file=sys.stderr,
                        flush=True,
                    )
            self._lost = True
            return False
        self._lost = False
        return True
