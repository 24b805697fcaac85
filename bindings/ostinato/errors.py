"""What ostinato raises, and the exit statuses of its commands.

    try:
        engine, *_ = deepspeed.initialize(...)
    except ostinato.errors.Error as error:      # whatever of ostinato it comes from
        print(error)                            # what is wrong, and what would be right
"""

import enum


class Status(enum.IntEnum):
    """Of every command; those that are C++ have the same from search/files/error.h."""

    DONE = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    BAD_INPUT = 3
    INFEASIBLE = 4
    STOPPED_AT_LIMIT = 5  # the best plan so far was written
    CHECK_FAILED = 6
    MISSING = 7  # a device or library that was asked for is not there
    INTERRUPTED = 130


class Error(Exception):
    """The root of what ostinato raises: a user's mistake, or something that cannot be done. `str()` says what would be right."""
