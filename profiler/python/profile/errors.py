# SPDX-License-Identifier: Apache-2.0
"""The error of the profiler, with the exit status of the command."""

from ostinato.errors import Error, Status


class ProfileError(Error):
    """A user's mistake, or a model that cannot be profiled. The message says what would be right."""

    def __init__(self, message: str, status: Status | int = Status.BAD_INPUT):
        super().__init__(message)
        self.status = status
