# SPDX-License-Identifier: Apache-2.0
"""What a plan gains, with the same names everywhere: your run now, 1F1B on the best stages, this plan.

    told = Gain(program.beside, program.predicted, program.whole_step)
    told.headline            # "expected to be 1.33 times as fast as your run now"
    told.figures             # "measured 37.5 -> expected 28.1 ms a step; layers alone: ..."; "": all is in the headline
    told.step, told.factor   # what a whole step is expected to take, and the factor by which that is scaled

A profile says what layers take, and a step also waits for messages and runs the engine. Where a whole step of your
run was measured, what is expected of the plan is scaled by measured / expected of your run.
"""

from collections.abc import Sequence

# Its name, what it is predicted to take, and a whole step as it ran (0: not known); nanoseconds.
Beside = tuple[str, int, int]


WARM_UP = 2  # first steps of a run, which no figure counts
YOUR_RUN = "your run now"  # among the plans beside this one: DeepSpeed's own partition
YOUR_RUN_THEN = "your run when it was profiled"  # where its step was measured by an earlier run
KNOWN = 0.2  # by which a measured step may differ from what its layers add up to
NOISE = 0.05  # the same, of measurements of an idle machine
IN_DOUBT = (
    ", in doubt: no step is shorter than its layers, so these were measured while the machine was busier"
)
WORTH = 1.005  # a smaller gain is told as 1.00


class Gain:
    """Of a plan over the first of `beside`. `predicted`, `whole_step`: nanoseconds of the plan's step, and with the
    optimizer (0: not known). `measured`: a whole step of your run, where this run has measured it; nanoseconds."""

    def __init__(
        self, beside: Sequence[Beside], predicted: int, whole_step: int = 0, measured: int | None = None
    ):
        self._beside, self._predicted = beside, predicted
        optimizer = max(0, whole_step - predicted)  # about the same in your run
        name, now, self.measured = beside[0] if beside else ("", 0, 0)
        self._then = measured is None and self.measured > 0
        if measured is not None and name == YOUR_RUN:
            self.measured = measured
        self._whole, self._now = predicted + optimizer, now + optimizer
        self.factor = self.measured / self._now if self.measured and self._now else 1.0
        self.step = self._whole * self.factor

    @property
    def is_over_your_run(self) -> bool:
        return bool(self._beside) and self._beside[0][0] == YOUR_RUN

    @property
    def is_worth_it(self) -> bool:
        """Unless a step of your run, as measured, is as short as the plan's is expected to be."""
        return not self.measured or self.measured >= WORTH * self.step

    @property
    def headline(self) -> str:
        return self.over(YOUR_RUN_THEN if self._then else YOUR_RUN)

    def over(self, your_run: str) -> str:
        """The headline, with this name of your run."""
        if not self._beside or not self._predicted:
            return f"expected to take {_ms(self._predicted)} ms a step{self._optimizer}"
        name, now, _ = self._beside[0]
        times = self._range()[0] if self.measured else f"{now / self._predicted:.2f}"
        name = your_run if self.is_over_your_run else name
        return f"expected to be {times} times as fast as {name}{self._shares}"

    @property
    def figures(self) -> str:
        if not self._beside or not self._predicted:
            return ""
        layers = f"{_ms(self._beside[0][1])} -> {_ms(self._predicted)} ms"
        others = "; ".join(f"{other}: {_ms(takes)} ms" for other, takes, _ in self._beside[1:])
        beside = f" ({others})" * bool(others)
        if not self.measured:
            return f"predicted {layers} a step{beside}{self._optimizer}"
        _, steps, doubt = self._range()
        measured = f"measured {_ms(self.measured)} -> expected {steps} ms a step{doubt}"
        return f"{measured}; layers alone: {layers}{beside}, scaled by {self.factor:.2f}"

    @property
    def _shares(self) -> str:
        """How much of it DeepSpeed alone would gain with other stages: 1F1B on the best stages comes second. Of whole
        steps where the headline is of these, so that the product is its factor."""
        if not self.is_over_your_run or len(self._beside) < 2:
            return ""
        now = self._beside[0][1]
        # The best stages are found by what they compute, without transfers.
        if not (best := min(now, self._beside[1][1])):
            return ""
        more = self._now - now if self.measured else 0  # the optimizer
        stages, schedule = (now + more) / (best + more), (best + more) / (self._predicted + more)
        return f" ({stages:.2f} by other stages, {schedule:.2f} by the schedule)"

    def _range(self) -> tuple[str, str, str]:
        """How many times as fast, milliseconds of a step, and what makes them doubtful."""
        high, step = self.measured / self.step, _ms(self.step)
        if self.factor > 1 + KNOWN and self._now > self._whole:
            # The plan may shorten what is not layers as much as these, or not at all.
            longest = self.measured - (self._now - self._whole)
            low = self.measured / longest
            if f"{low:.2f}" != f"{high:.2f}":
                return f"{low:.2f} to {high:.2f}", f"{step} to {_ms(longest)}", ""
        slow = self.factor < 1 - NOISE
        return f"{high:.2f}", step, IN_DOUBT * slow

    @property
    def _optimizer(self) -> str:
        return f"; {_ms(self._whole)} ms with the optimizer" if self._whole > self._predicted else ""


def _ms(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.1f}" if milliseconds >= 1 else f"{milliseconds:.3g}"
