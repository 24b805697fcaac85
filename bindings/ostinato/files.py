"""Whole files out: written beside their place, flushed to the disk, and renamed, so that nothing is ever half there."""

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replaces the file as a whole; makes its folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
