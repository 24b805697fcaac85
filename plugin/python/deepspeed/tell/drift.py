# SPDX-License-Identifier: Apache-2.0
"""Which devices are slower than planned, or whether all blocks take longer than at first: rank 0 says so while the
run goes on.

    drift = Drift(BlockTimes(program, device, EVERY // SAMPLED))         # on every rank
    drift.step(program, executor, step)                                  # after every step

Every rank leaves its figures in the store of the default process group, and rank 0 takes what is there: no rank
waits for another. What two comparisons in a row agree on is not noise, and is said once. (`adapt` compares in the
same way, but all ranks together, because they act on it.)
"""

import json
import statistics
from itertools import count
from typing import Any

import torch.distributed as dist
from ostinato.measured import CHANGED, Measured, MeasuredBlock
from torch.distributed.distributed_c10d import _get_default_store

from .announce import say
from .trace import Steady, blocks_of, means_of

EVERY = 50  # steps between two comparisons
SAMPLED = 5  # one in this many of these steps is looked at
WARM_UP = 2  # steps that do not count

_engines = count()  # every rank makes its engines in the same order

Row = tuple[MeasuredBlock, float, float]  # what a block was planned to take, and took; nanoseconds


class BlockTimes:
    """Of this rank's blocks, planned and measured. `steps`: of which the medians are."""

    def __init__(self, program: Any, device: int, steps: int):
        self.program, self._device = program, device
        instructions = list(program.instructions(device))
        planned = [(index, i.start, i.end) for index, i in enumerate(instructions)]
        self._planned = means_of(blocks_of(instructions), planned)
        self._steady = Steady(instructions, steps)

    def add(self, records: list[tuple[int, int, int]]) -> None:
        self._steady.add(records)

    def rows(self) -> list[Row]:
        return [
            (MeasuredBlock(self._device, *block), self._planned[block], statistics.median(of_steps))
            for block, of_steps in self._steady.means.items()
        ]


class Comparisons:
    """On rank 0. `told`: the change that was said last; None: all is as planned."""

    def __init__(self) -> None:
        self._last: Measured | None = None
        self.told: Measured | None = None

    def settled(self, found: Measured) -> bool:
        """Whether the comparison before says the same."""
        before, self._last = self._last, found
        return before is not None and _alike(found, before)

    def is_news(self, found: Measured) -> bool:
        return self.told is None or not _alike(found, self.told)

    def as_planned(self, step: int) -> None:
        if self.told is not None:
            say(f"step {step}: blocks take as long as planned again")
        self.told = None


class Drift:
    """Of one engine, with a plan that was made from a profile."""

    def __init__(self, times: BlockTimes, store: Any = None):
        self._times = times
        self._store = store or _get_default_store()
        engine = next(_engines)
        self._keys = [f"ostinato/drift/{engine}/{rank}" for rank in range(dist.get_world_size())]
        self._steps = -WARM_UP
        self._comparisons = Comparisons()
        self._at_first = 0.0  # times as long as planned the blocks took; 0: not known yet

    def step(self, program: Any, executor: Any, step: int) -> None:
        """`program`: that it ran; with another number of micro-batches than configured nothing is compared."""
        if program is not self._times.program:
            return
        self._steps += 1
        if self._steps <= 0 or self._steps % SAMPLED:
            return
        self._times.add(executor.records())
        if self._steps % EVERY == 0:
            if dist.get_rank() == 0:
                self._look(step)
            self._store.set(self._keys[dist.get_rank()], json.dumps(self._times.rows()))

    def _look(self, step: int) -> None:
        """At what the ranks have left last: of the steps before these, mostly."""
        if not self._store.check(self._keys):
            return
        left = map(json.loads, self._store.multi_get(self._keys))
        rows = [
            (MeasuredBlock(*block), planned, took) for of_rank in left for block, planned, took in of_rank
        ]
        found = Measured.of_rows(rows)
        if not found.overall or not self._comparisons.settled(found):
            return
        self._at_first = self._at_first or found.overall
        by = found.overall / self._at_first
        # Compared with the first steps, not with the plan: `speedup` compares those with what the plan expects.
        told = "; ".join([*slow_devices(found), *overall_change(found, by, "at first")])
        if not told:
            self._comparisons.as_planned(step)
        elif self._comparisons.is_news(found):
            self._comparisons.told = found
            say(f'step {step}: {told}; "adapt" would plan again')


def slow_devices(found: Measured) -> list[str]:
    """In words, each that differs from the median device by more than CHANGED."""
    return [
        f"device {device} takes {by:.2f} times as long as planned, compared with {found.usual_device}"
        for device, by in sorted(found.devices.items())
        if abs(by - 1) > CHANGED
    ]


def overall_change(found: Measured, by: float, than: str) -> list[str]:
    """In words, that blocks of the median device take `by` times as long as `than`, if that is more than CHANGED."""
    if abs(by - 1) <= CHANGED:
        return []
    who = f"blocks {found.on_usual_device}" if slow_devices(found) else "all blocks"
    return [f"{who} take {by:.2f} times as long as {than}"]


def _alike(one: Measured, other: Measured) -> bool:
    pairs = [
        (one.overall, other.overall),
        *((by, other.devices[device]) for device, by in one.devices.items()),
    ]
    return all(abs(a / b - 1) <= CHANGED for a, b in pairs)
