# SPDX-License-Identifier: Apache-2.0
"""A rank that waits long for others says so while the run goes on: once a wait, long before it gives up.

    lateness = Lateness(executor.position, after_s=30.0)
    lateness.news()      # "rank 0 is in step 7 at ..., waiting 31000 ms for 3RECV_F4 (2SEND_F4 of rank 1 ...)"; mostly ""

In a pipeline one late rank makes all others wait, each for its neighbour: the one that they lead to, and that
waits for nobody, is late.

A run that waits so long in every step says it now and then: after each line nothing for a while that doubles,
up to QUIET_S, unless a wait is twice as long as any before. A rank that was stopped itself has seen nothing
of its wait.
"""

import math
import re
import time
from collections.abc import Callable

# As executors say it, and of what is outside of them.
_WAITING = re.compile(
    r"(?P<where>.*), (?:waiting (?P<ms>\d+) ms for|busy (?P<busy>\d+) ms with) (?P<what>.*)", re.DOTALL
)
LOOKS_S = 10.0  # a watch looks more often, also where the machine is busy
QUIET_S = 3600.0  # at most, between lines that say nothing worse


class Lateness:
    """`clock`: seconds, which go on while this process is stopped."""

    def __init__(
        self, position: Callable[[], str], after_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._position, self._after_s, self._clock = position, after_s, clock
        self._asked = clock()
        self._wait, self._told = ("", ""), False  # the last one
        self._left_out = 0  # waits as long that nothing was said of, since the last line
        self._quiet_s, self._quiet_until, self._longest_s = after_s, -math.inf, 0.0
        self._before = self._quiet_s, self._quiet_until, self._longest_s  # before the last news

    def news(self) -> str:
        """What is to be said now; empty: nothing new. To be called again and again, by one thread."""
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
            f" (and waited so {others} more time{'s' * (others > 1)} since it last said so)" if others else ""
        )

    def unsaid(self) -> None:
        """The news were not worth a line: nobody is late. They are none of this wait, and make nothing quiet."""
        self._quiet_s, self._quiet_until, self._longest_s = self._before

    def _worth_a_line(self, waited_s: float, now: float) -> bool:
        if now < self._quiet_until and waited_s < 2 * self._longest_s:
            return False
        self._before = self._quiet_s, self._quiet_until, self._longest_s
        self._longest_s = max(self._longest_s, waited_s)
        self._quiet_s = min(2 * self._quiet_s, QUIET_S)
        self._quiet_until = now + self._quiet_s
        return True
