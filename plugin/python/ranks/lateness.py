# SPDX-License-Identifier: Apache-2.0
"""A rank that waits long for other ranks says so while the run goes on: once per wait, long before it gives up.

    lateness = Lateness(executor.position, after_s=30.0)
    lateness.news()      # "rank 0 is in step 7 at ..., waiting 31000 ms for 3RECV_F4 (2SEND_F4 of rank 1 ...)"; mostly ""

In a pipeline one late rank makes all ranks wait, each for its neighbour: at the end of the chain is the rank that
waits for no other, which is the late one.

A run that waits that long in every step says so only now and then: after each line it is quiet for a time that
doubles, up to QUIET_S, unless a wait is twice as long as any before. A rank that was itself stopped does not
count that time as a wait.
"""

import math
import re
import time
from collections.abc import Callable

# As executors say it, and Outside.
_WAITING = re.compile(
    r"(?P<where>.*), (?:waiting (?P<ms>\d+) ms for|busy (?P<busy>\d+) ms with) (?P<what>.*)", re.DOTALL
)
LOOKS_S = 10.0  # a watch looks more often than this, even on a busy machine
QUIET_S = 3600.0  # longest pause between lines about equal waits


class Lateness:
    """`clock`: seconds, which pass while this process is stopped."""

    def __init__(
        self, position: Callable[[], str], after_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._position, self._after_s, self._clock = position, after_s, clock
        self._asked = clock()
        self._wait, self._told = ("", ""), False  # the last one
        self._left_out = 0  # long waits since the last line that were not reported
        self._quiet_s, self._quiet_until, self._longest_s = after_s, -math.inf, 0.0
        self._before = self._quiet_s, self._quiet_until, self._longest_s  # before the last news

    def news(self) -> str:
        """What to say now; empty: nothing new. One thread must call it again and again."""
        now = self._clock()
        stopped, self._asked = now - self._asked >= max(self._after_s, LOOKS_S), now
        waits = _WAITING.fullmatch(self._position())
        ms = int(waits["ms"] or waits["busy"]) if waits else 0
        if waits is None or stopped or ms < 1000 * self._after_s:
            return ""
        if self._wait != (waits["where"], waits["what"]):
            self._wait, self._told = (waits["where"], waits["what"]), False
            self._left_out += 1
        if self._told or not self._worth_a_line(ms / 1000, now):
            return ""
        others, self._told, self._left_out = self._left_out - 1, True, 0
        return waits[0] + (
            f" (and waited as long {others} more time{'s' * (others > 1)} since its last message)"
            if others
            else ""
        )

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
