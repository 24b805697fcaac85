# SPDX-License-Identifier: Apache-2.0
"""The error of the profiler, with the exit status of the command."""

import sys
import traceback

from ostinato.errors import Error, Status

LIBRARIES = {*sys.stdlib_module_names, "deepspeed", "ostinato", "torch"}


class ProfileError(Error):
    """A user's mistake, or a model that cannot be profiled. The message says what would be right."""

    def __init__(self, message: str, status: Status | int = Status.BAD_INPUT):
        super().__init__(message)
        self.status = status


def place_of(error: BaseException) -> str:
    """ " (train.py:17)": the innermost line outside LIBRARIES that led to it; empty: there is none."""
    lines = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARIES
    ]
    return lines[-1] if lines else ""
