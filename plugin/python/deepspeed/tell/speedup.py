# SPDX-License-Identifier: Apache-2.0
"""Is the plan faster than what ran before? Times its first steps, and compares them with DeepSpeed's own from
the first start; where these are not known, with what the plan expects.

    run.speedup = Speedup(before, Expected(0.0270), warm_up=2, fall_back=again_without)    # before: seconds of steps
    run.speedup.step(seconds)                                           # after every step, on every rank

Rank 0 says so in one line where the plan is not slower; beside a step that an earlier run has measured, it gives
both times and no ratio. A plan that is slower by more than both spreads falls back, where that is possible.
"""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deepspeed.accelerator import get_accelerator

from ostinato.errors import counted
from ostinato.gain import KNOWN
from ostinato.groups import everyones

from ..upstream import Engine
from .announce import say

LOOKS = (5, 10, 20)  # steps after which ranks compare; the last comparison decides
ENOUGH_S = 20.0  # seconds after which no more steps are needed


@dataclass(frozen=True)
class Expected:
    """Of a step of the plan; `how`: what the seconds leave out, or how they were scaled, in words."""

    seconds: float
    how: str = ""


class _Timed(ABC):
    """Times whole steps of one engine, and looks at the slowest rank's after LOOKS. All ranks must make one,
    with equal arguments. `warm_up`: steps that do not count."""

    def __init__(self, warm_up: int):
        self._left, self._seconds = warm_up, list[float]()
        self.over = False  # no more steps are timed

    def step(self, seconds: float) -> None:
        self._left -= 1
        if self.over or self._left >= 0:
            return
        self._seconds.append(seconds)
        if len(self._seconds) in LOOKS:
            self._look([max(times) for times in zip(*everyones(self._seconds), strict=True)])

    @abstractmethod
    def _look(self, now: list[float]) -> None:
        """`now`: seconds of the steps until here; sets `over` where no more are needed."""


class Speedup(_Timed):
    """Whether one engine's plan is faster than what ran before. `before`: seconds of whole steps, the same on all
    ranks; a single entry comes from an earlier run; [] where none were measured. `fall_back` is told why, and the
    plan's seconds, and returns only where it cannot fall back, with the reason; None: a slower plan stays. `stays`
    is then told why, and returns in words what follows."""

    def __init__(
        self,
        before: Sequence[float],
        expected: Expected,
        warm_up: int,
        fall_back: Callable[[str, list[float]], str] | None = None,
        stays: Callable[[str], str] = lambda _: "",
    ):
        super().__init__(warm_up)
        self._before, self._expected = before, expected
        self._fall_back, self._follows = fall_back, stays
        self._stays = ""
        self.over = not before and not expected.seconds

    def stay(self, why: str) -> None:
        """From here on the plan stays, slower or not."""
        self._stays = self._stays or why

    def _look(self, now: list[float]) -> None:
        slower = bool(self._before) and _quartiles(now)[0] > _quartiles(self._before)[1]
        sure = slower and len(self._before) > 1
        if not sure and not _is_enough(now):
            return
        self.over = True
        if not self._before:
            return say(self._beside_expected(now))
        if not sure and (changed := self._of_another_machine(now)):
            return say(changed)
        if not slower:
            return say(self._beyond_expected(now) or self._faster(now))
        doubt = "" if len(self._before) > 1 else ", unless the machine is busier now"
        why = f"this plan is slower than your run {self._then}: {self._times(now)}{doubt}"
        stays = "" if self._fall_back is None else self._stays or self._fall_back(why, now)
        follows = self._follows(why) or "turn it off or profile again"
        say(f"{why}; {follows}{f' (the plan stays, because {stays})' if stays else ''}")

    @property
    def _then(self) -> str:
        return "before" if len(self._before) > 1 else "when the plan was found"

    def _times(self, now: list[float]) -> str:
        before = self._before
        then = f"{spread(before)}; " if len(before) > 1 else ""
        return f"{_ms(statistics.median(before))} -> {_ms(statistics.median(now))} ms a step ({then}now {spread(now)})"

    def _gained(self, now: list[float]) -> float:
        return statistics.median(self._before) / statistics.median(now)

    def _as_expected(self, now: list[float]) -> float:
        """How many times as long as expected a step takes; 1 where nothing is expected."""
        return statistics.median(now) / self._expected.seconds if self._expected.seconds else 1.0

    def _faster(self, now: list[float]) -> str:
        if len(self._before) == 1:
            return self._beside_earlier(now)
        sure = _quartiles(now)[1] < _quartiles(self._before)[0]
        noise = "" if sure else ", which is within the noise of these steps"
        return f"this plan is {self._gained(now):.2f} times as fast as your run {self._then}{noise}: {self._times(now)}{self._missed(now)}"

    def _beside_earlier(self, now: list[float]) -> str:
        """No ratio: the machine may have been busier, or less busy, when an earlier run took its time."""
        return (
            f"steps take {_ms(statistics.median(now))} ms ({spread(now)}); your run took {_ms(self._before[0])} ms when the plan was found, "
            f"which was not measured again{self._missed(now)}"
        )

    def _missed(self, now: list[float]) -> str:
        """That steps take longer than what was expected a moment ago."""
        missed = self._as_expected(now) > 1 + KNOWN
        return f"; a step was expected to take {_ms(self._expected.seconds)} ms" * missed

    def _beyond_expected(self, now: list[float]) -> str:
        """Where steps became shorter than any plan explains: DeepSpeed's own were timed on a busier machine."""
        times, gained = self._as_expected(now), self._gained(now)
        if len(self._before) == 1 or times * (1 + KNOWN) >= 1:
            return ""
        return (
            f"what this plan gains is not known: {self._times(now)}, which is {gained:.2f} times as fast, but the plan was expected to be "
            f"{gained * times:.2f} times as fast; the machine was busier before"
        )

    def _beside_expected(self, now: list[float]) -> str:
        expected = self._expected
        return (
            f"a step takes {self._as_expected(now):.2f} times as long as the plan expects: expected {_ms(expected.seconds)} ms{expected.how} -> "
            f"measured {_ms(statistics.median(now))} ms a step ({spread(now)})"
        )

    def _of_another_machine(self, now: list[float]) -> str:
        """Where an earlier run has found the plan while the machine was busier, or less busy, than now, or steps did
        something else, such as no recomputation: what ran before then says nothing of what the plan gains."""
        if len(self._before) > 1 or abs(self._as_expected(now) - 1) <= KNOWN:
            return ""
        return (
            f"{self._beside_expected(now)}: the machine, or what the script does in a step, is not as it was when the plan was found; "
            "measure again to know what the plan gains"
        )


class GivenUp(_Timed):
    """Whether a plan was given up because the machine was busy: DeepSpeed's own steps of the start that follows, beside
    the `plan`'s, in seconds. `forget` is called where they are longer, and returns in words what follows."""

    def __init__(self, plan: Sequence[float], warm_up: int, forget: Callable[[], str]):
        super().__init__(warm_up)
        self._plan, self._forget = plan, forget

    def _look(self, now: list[float]) -> None:
        if not _is_enough(now):
            return
        self.over = True
        if _quartiles(now)[0] > _quartiles(self._plan)[1]:
            say(
                f"DeepSpeed's own steps take longer than those of the plan that was given up: {_ms(statistics.median(now))} ms ({spread(now)}) "
                f"instead of {_ms(statistics.median(self._plan))} ms ({spread(self._plan)}); {self._forget()}"
            )


def follow(engine: Engine, timed: _Timed) -> None:
    """Times the steps of DeepSpeed's own engine, while they have as many samples as now."""
    train, size = engine.train_batch, engine.train_batch_size()

    def train_batch(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        loss = train(*args, **kwargs)
        timed.over = timed.over or engine.train_batch_size() != size
        if not timed.over:
            get_accelerator().synchronize()
            timed.step(time.perf_counter() - begin)
        return loss

    vars(engine)["train_batch"] = train_batch


def _is_enough(seconds: list[float]) -> bool:
    return len(seconds) >= LOOKS[-1] or sum(seconds) >= ENOUGH_S


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
