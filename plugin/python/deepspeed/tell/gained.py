# SPDX-License-Identifier: Apache-2.0
"""Is the plan faster than what ran before? Times its first steps, and compares them with DeepSpeed's own from
the first start.

    run.gained = Gained(before, warm_up=2, fall_back=again_without)    # before: seconds of steps
    run.gained.step(seconds)                                           # after every step, on every rank

Rank 0 says so in one line where the plan is not slower. A plan that is slower by more than both spreads falls
back, where that is possible.
"""

import statistics
from collections.abc import Callable, Sequence

from ostinato.errors import counted
from ostinato.groups import everyones

from .announce import say

LOOKS = (5, 10, 20)  # steps after which ranks compare; the last comparison decides
ENOUGH_S = 20.0  # seconds after which no more steps are needed


class Gained:
    """Whether one engine's plan is faster than what ran before. `before`: seconds of whole steps, the same on all ranks; a single entry comes from an
    earlier run. `warm_up`: steps that do not count. `fall_back` is told why, and returns only where it cannot
    fall back, with the reason; None: a slower plan stays. All ranks must make one, with equal arguments."""

    def __init__(self, before: Sequence[float], warm_up: int, fall_back: Callable[[str], str] | None):
        self._before, self._left, self._fall_back = before, warm_up, fall_back
        self._seconds: list[float] = []
        self._stays = ""
        self.over = not before  # no more steps are timed

    def stay(self, why: str) -> None:
        """From here on the plan stays, slower or not."""
        self._stays = self._stays or why

    def step(self, seconds: float) -> None:
        self._left -= 1
        if self.over or self._left >= 0:
            return
        self._seconds.append(seconds)
        if len(self._seconds) in LOOKS:
            self._look([max(times) for times in zip(*everyones(self._seconds), strict=True)])

    def _look(self, now: list[float]) -> None:
        before, slower = self._before, _quartiles(now)[0] > _quartiles(self._before)[1]
        if not slower and len(now) < LOOKS[-1] and sum(now) < ENOUGH_S:
            return
        self.over = True
        then = "before" if len(before) > 1 else "when the plan was found"
        times = f"{_ms(statistics.median(before))} -> {_ms(statistics.median(now))} ms a step ({spread(before)}; now {spread(now)})"
        if not slower:
            gained = statistics.median(before) / statistics.median(now)
            sure = _quartiles(now)[1] < _quartiles(before)[0]
            noise = "" if sure else ", which is within the noise of these steps"
            say(f"this plan is {gained:.2f} times as fast as your run {then}{noise}: {times}")
            return
        why = f"this plan is slower than your run {then}: {times}"
        stays = "" if self._fall_back is None else self._stays or self._fall_back(why)
        say(f"{why}; turn it off or profile again{f' (the plan stays, because {stays})' if stays else ''}")


def spread(seconds: Sequence[float]) -> str:
    """ "quartiles 1000.0 to 1030.0, 5 steps"; "1 step"."""
    if len(seconds) == 1:
        return "1 step"
    low, high = _quartiles(seconds)
    return f"quartiles {_ms(low)} to {_ms(high)}, {counted(len(seconds), 'step')}"


def _quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
