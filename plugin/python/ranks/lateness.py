# SPDX-License-Identifier: Apache-2.0
"""A rank that waits long for other ranks says so while the run goes on: once per wait, long before it gives up.

    lateness = Lateness(lambda: Position(*executor.position()), after_s=30.0)
    late = lateness.news()      # a Position that waits, or is busy; mostly None
    print(late, lateness.as_long())

In a pipeline one late rank makes all ranks wait, each for its neighbour: at the end of the chain is the rank that
waits for no other, which is the late one.

A run that waits that long in every step says so only now and then: after each line it is quiet for a time that
doubles, up to QUIET_S, unless a wait is twice as long as any before. A rank that was itself stopped does not
count that time as a wait.
"""

import math
import time
from collections.abc import Callable

from .position import Position

LOOKS_S = 10.0  # a watch looks more often than this, even on a busy machine
QUIET_S = 3600.0  # longest pause between lines about equal waits


class Lateness:
    """`clock`: seconds, which pass while this process is stopped."""

    def __init__(
        self, position: Callable[[], Position], after_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._position, self._after_s, self._clock = position, after_s, clock
        self._asked = clock()
        self._wait, self._told = Position(""), False  # the last one
        self._left_out = 0  # long waits since the last line that were not reported
        self._others = 0  # of these, before the last news
        self._quiet_s, self._quiet_until, self._longest_s = after_s, -math.inf, 0.0
        self._before = self._quiet_s, self._quiet_until, self._longest_s  # before the last news

    def news(self) -> Position | None:
        """The wait to report now; None: nothing new. One thread must call it again and again."""
        now = self._clock()
        stopped, self._asked = now - self._asked >= max(self._after_s, LOOKS_S), now
        position = self._position()
        if stopped or position.ms < 1000 * self._after_s:
            return None
        if self._wait != position._replace(ms=0):
            self._wait, self._told = position._replace(ms=0), False
            self._left_out += 1
        if self._told or not self._worth_a_line(position.ms / 1000, now):
            return None
        self._others, self._told, self._left_out = self._left_out - 1, True, 0
        return position

    def as_long(self) -> str:
        """How often it has waited as long before the last news, unreported; "": not once."""
        times = f"{self._others} more time{'s' * (self._others > 1)}"
        return f" (and waited as long {times} since its last message)" if self._others else ""

    def unsaid(self) -> None:
        """Takes the last news back, as no rank is late: it starts no quiet time."""
        self._quiet_s, self._quiet_until, self._longest_s = self._before

    def _worth_a_line(self, waited_s: float, now: float) -> bool:
        if now < self._quiet_until and waited_s < 2 * self._longest_s:
            return False
        self._before = self._quiet_s, self._quiet_until, self._longest_s
        self._longest_s = max(self._longest_s, waited_s)
        self._quiet_s = min(2 * self._quiet_s, QUIET_S)
        self._quiet_until = now + self._quiet_s
        return True
