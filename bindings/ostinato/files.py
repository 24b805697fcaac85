# SPDX-License-Identifier: Apache-2.0
"""Whole files out: written beside their place, flushed to the disk, and renamed, so that nothing is ever half there.

Pipes and devices (/dev/stdout, /dev/null) are written in place, and through a symbolic link the file behind it is replaced, as the
C++ commands do (search/files/file.cpp).
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


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
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def why_not_writable(path: Path) -> str:
    """Why write_text() would fail, in words; empty: as far as can be known it will not. Leaves nothing behind."""
    if is_special(path):
        return "" if os.access(path, os.W_OK) else "cannot be written"
    target = Path(os.path.realpath(path))
    if target.is_dir():
        return "is a folder"
    folder = target.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"nothing can be written to {folder}: {error.strerror}"


def why_not_all(outputs: Mapping[str, Path | None]) -> str:
    """What is wrong with a command's outputs, by option; empty: nothing. Asked before the work that the outputs are of."""
    places: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        reason = why_not_writable(path)
        if reason:
            return f"{option} {path}: {reason}"
        place = os.path.realpath(path)
        if place in places and not is_special(path):
            return f"{option} {path}: {places[place]} goes to the same file"
        places[place] = option
    return ""
