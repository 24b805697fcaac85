"""What goes wrong while profiling, with the exit status that the command gives it (search/files/error.h)."""

BAD_INPUT = 3
CHECK_FAILED = 6
MISSING = 7


class ProfileError(Exception):
    """A user's mistake, or a model that cannot be profiled. The message says what would be right."""

    def __init__(self, message: str, status: int = BAD_INPUT):
        super().__init__(message)
        self.status = status
