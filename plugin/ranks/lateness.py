# SPDX-License-Identifier: Apache-2.0
"""A rank that waits long for another says so while the run goes on: once a wait, long before it gives up.

    lateness = Lateness(executor.position, after_s=30.0)
    lateness.news()      # "rank 0 is in step 7 at ..., waiting 31000 ms for 3RECV_F4 (2SEND_F4 of rank 1 ...)"; mostly ""

In a pipeline one late rank makes all others wait, each for its neighbour: the one that they lead to, and that waits for nobody, is late.
"""

import re
from collections.abc import Callable

_WAITING = re.compile(r"(?P<where>.*), waiting (?P<ms>\d+) ms for (?P<what>.*)", re.DOTALL)  # as executors say it


class Lateness:
    def __init__(self, position: Callable[[], str], after_s: float):
        self._position, self._after_s = position, after_s
        self._said = ("", "")  # the last wait

    def news(self) -> str:
        """What is to be said now; empty: nothing new."""
        waits = _WAITING.fullmatch(self._position())
        if waits is None or int(waits["ms"]) < 1000 * self._after_s or self._said == (waits["where"], waits["what"]):
            return ""
        self._said = (waits["where"], waits["what"])
        return waits[0]
