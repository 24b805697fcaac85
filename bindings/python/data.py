# SPDX-License-Identifier: Apache-2.0
"""Deals samples of unequal size over replicas and micro-batches so that no pipeline is much slower than the rest.

    from ostinato.data import BalancedBatches

    batches = BalancedBatches(lengths, micro_batches=8, micro_batch_size=2, replicas=4, replica=rank, stages=2)
    loader = DataLoader(dataset, batch_sampler=batches)

A step trains the same samples as without it: it only chooses which replica computes which, and when. This module
needs neither torch nor the rest of ostinato.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Stage = tuple[float, float]  # forward and backward of one micro-batch on one stage, in any unit of time
# By stage, for a micro-batch with samples of these sizes.
Times = Callable[[Sequence[float]], Sequence[Stage]]
Batch = list[int]  # indices of the samples of a micro-batch

# What says of a sampler which samples each step has, and how they are dealt.
STEPS = ("seed", "samples", "samples_a_step")
DEALT = ("micro_batches", "micro_batch_size", "replicas", "stages", "padded", "effort")


@dataclass(frozen=True)
class Deal:
    """How one step is dealt. Times are in the unit of `times`."""

    batches: tuple[tuple[Batch, ...], ...]  # by replica, in the order in which they enter its pipeline
    predicted: tuple[float, ...]  # by replica: no schedule of its micro-batches takes less
    bound: float  # however these micro-batches are dealt, the slowest replica is predicted no less

    @property
    def slowest(self) -> float:
        return max(self.predicted)


class BalancedBatches:
    """A batch sampler: yields the micro-batches of one replica, `micro_batches` a step, each a list of
    indices.

    `sizes`: of every sample of the data set (tokens, pixels, ...). `sampler`: indices in the order in which
    steps take them, all replicas' together; None: shuffled by `seed` and epoch. Samples that fill no whole
    step are left out; iterating over fewer than a step takes raises ValueError. `times`: what a micro-batch costs on each stage, from the sizes of its samples; None:
    forwards in proportion to their sum (to their number times the largest, where shorter ones are `padded`),
    backwards twice that, on `stages` equal stages. `effort`: exchanges that are looked at a step, about 50 ms
    of them.

    Every replica computes the same deal from the same arguments, so none has to tell another.

    >>> batches = BalancedBatches([5, 1, 1, 5, 3, 3, 4, 2], micro_batches=2, replicas=2, sampler=range(8))
    >>> list(batches)  # two steps of two micro-batches each
    [[1], [0], [4], [5]]
    """

    def __init__(
        self,
        sizes: Sequence[float],
        *,
        micro_batches: int,
        micro_batch_size: int = 1,
        replicas: int = 1,
        replica: int = 0,
        stages: int = 1,
        times: Times | None = None,
        padded: bool = False,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        effort: int = 20_000,
    ):
        counts = {
            "micro_batches": micro_batches,
            "micro_batch_size": micro_batch_size,
            "replicas": replicas,
            "stages": stages,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} is {count}; it must be 1 or more")
        if not 0 <= replica < replicas:
            raise ValueError(f"replica is {replica}; it must be 0 to {replicas - 1}")
        self.sizes, self.sampler, self.seed, self.effort = sizes, sampler, seed, effort
        self.micro_batches, self.micro_batch_size = micro_batches, micro_batch_size
        self.replicas, self.replica, self.stages = replicas, replica, stages
        self.padded, self.times = padded, times or _proportional(stages, padded)
        self.epoch = 0
        self._start = 0  # micro-batches of this epoch that a loaded state has taken
        self._taken = [0]  # by the latest iteration
        self._latest = 0  # its epoch

    @property
    def samples(self) -> int:
        """Of the data set."""
        return len(self.sizes)

    @property
    def samples_a_step(self) -> int:
        """Of all replicas together."""
        return self.micro_batches * self.micro_batch_size * self.replicas

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return (len(self.sizes) if self.sampler is None else len(self.sampler)) // self.samples_a_step  # type: ignore[arg-type]  # Sized, where it is no sampler of torch's own

    def __len__(self) -> int:
        """Micro-batches of an epoch on this replica."""
        return self.steps * self.micro_batches

    def __iter__(self) -> Iterator[Batch]:
        """From where a loaded state stands, or from the beginning of the epoch, which ends with the latest
        iteration."""
        order = self._order()
        if len(order) < self.samples_a_step:
            raise ValueError(f"{len(order)} samples fill no step, which takes {self.samples_a_step}")
        self._taken = taken = [self._start]
        self._latest = epoch = self.epoch
        for step in range(self._start // self.micro_batches, len(order) // self.samples_a_step):
            mine = self.deal(order[step * self.samples_a_step : (step + 1) * self.samples_a_step]).batches[
                self.replica
            ]
            for batch in mine[taken[0] % self.micro_batches :]:
                taken[0] += 1
                yield batch
        if self._taken is taken:
            self.set_epoch(epoch + 1)
            self._latest = epoch  # it is still being trained where a loader with workers fetches ahead

    def set_epoch(self, epoch: int) -> None:
        """As of torch's DistributedSampler: another shuffle; starts over."""
        self.epoch, self._start, self._taken, self._latest = epoch, 0, [0], epoch
        follow = getattr(self.sampler, "set_epoch", None)
        if follow is not None:
            follow(epoch)

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Where the latest iteration stands. `steps`: of its epoch that were trained, those before a loaded
        state among them, where a loader with workers has fetched more than that; also of an epoch that was
        fetched to its end."""
        if steps is not None:
            self._check_steps(steps)
        epoch = self.epoch if steps is None else self._latest
        taken, begun = divmod(self._taken[0], self.micro_batches) if steps is None else (steps, 0)
        same = {key: getattr(self, key) for key in STEPS + DEALT}
        return {"epoch": epoch, "steps": taken, "begun": begun, **same}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there, from the end of a step also with other numbers of replicas and micro-batches.
        Raises ValueError where the steps of that state are not the same samples, as far as numbers show it:
        sizes, `sampler` and `times` are not compared."""
        if missing := self.state_dict().keys() - state.keys():
            raise ValueError(
                f"the state has no {', '.join(sorted(missing))}: another version of ostinato saved it"
            )
        for key in STEPS + (DEALT if state["begun"] else ()):
            if state[key] != getattr(self, key):
                what = "its steps" if key in STEPS else "the rest of the step that it has begun"
                raise ValueError(
                    f"the state has {key} {state[key]}, but this sampler has {getattr(self, key)}: {what} would differ"
                )
        self._check_steps(state["steps"])
        self.set_epoch(state["epoch"])
        self._start = state["steps"] * self.micro_batches + state["begun"]
        self._taken = [self._start]

    def _check_steps(self, steps: int) -> None:
        if not 0 <= steps <= self.steps:
            raise ValueError(f"{steps} steps were trained, but an epoch has {self.steps}")

    def deal(self, samples: Sequence[int]) -> Deal:
        """Over replicas and micro-batches, of one step; the same for the same arguments."""
        if len(samples) != self.samples_a_step:
            raise ValueError(f"a step has {self.samples_a_step} samples, not {len(samples)}")
        for sample in samples:
            if not 0 <= self.sizes[sample] < math.inf:  # nor NaN
                raise ValueError(f"the size of sample {sample} is {self.sizes[sample]}; it must be 0 or more")
        batches = self._grouped(sorted(samples, key=lambda s: (-self.sizes[s], s)))
        costs = [_Cost(self.times([self.sizes[s] for s in batch])) for batch in batches]
        dealt = _deal(costs, self.replicas, self.effort)
        ordered = [_heaped(sorted(mine, key=lambda k: (costs[k].path, batches[k]))) for mine in dealt]
        predicted = tuple(_predicted([costs[k] for k in mine]) for mine in ordered)
        return Deal(
            batches=tuple(tuple(batches[k] for k in mine) for mine in ordered),
            predicted=predicted,
            bound=min(_least(costs, self.replicas), max(predicted)),  # sums of floats are rounded
        )

    def _order(self) -> list[int]:
        if self.sampler is not None:
            return list(self.sampler)
        order = list(range(len(self.sizes)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return order

    def _grouped(self, falling: list[int]) -> list[Batch]:
        """Into micro-batches: of like sizes where they are padded, else of like sums."""
        count, each = self.micro_batches * self.replicas, self.micro_batch_size
        if self.padded or each == 1:
            return [falling[k * each : (k + 1) * each] for k in range(count)]
        batches: list[Batch] = [[] for _ in range(count)]
        sums = [0.0] * count
        for sample in falling:
            k = min((k for k in range(count) if len(batches[k]) < each), key=lambda k: (sums[k], k))
            batches[k].append(sample)
            sums[k] += self.sizes[sample]
        return batches


class _Cost:
    """Of one micro-batch, by stage: its work, what passes before its forward and after its backward there."""

    def __init__(self, stages: Sequence[Stage]):
        self.work = [forward + backward for forward, backward in stages]
        self.head = [sum(forward for forward, _ in stages[:s]) for s in range(len(stages))]
        self.tail = [sum(backward for _, backward in stages[:s]) for s in range(len(stages))]
        self.path = sum(self.work)


def _proportional(stages: int, padded: bool) -> Times:
    def times(sizes: Sequence[float]) -> list[Stage]:
        forward = len(sizes) * max(sizes) if padded else sum(sizes)
        return [(forward, 2 * forward)] * stages

    return times


def _predicted(mine: Sequence[_Cost]) -> float:
    """U1 and U2 of docs/bounds.md, of a chain of stages: the busiest stage's work with the least before and
    after it."""
    longest = max(one.path for one in mine)
    for s in range(len(mine[0].work)):
        fill = min(one.head[s] for one in mine) + min(one.tail[s] for one in mine)
        longest = max(longest, fill + sum(one.work[s] for one in mine))
    return longest


def _least(costs: Sequence[_Cost], replicas: int) -> float:
    """The slowest replica is no quicker than all together in the mean, and their first (last) micro-batches
    are different ones."""
    least = max(one.path for one in costs)
    for s in range(len(costs[0].work)):
        fill = sum(sorted(one.head[s] for one in costs)[:replicas]) + sum(
            sorted(one.tail[s] for one in costs)[:replicas]
        )
        least = max(least, (fill + sum(one.work[s] for one in costs)) / replicas)
    return least


def _deal(costs: Sequence[_Cost], replicas: int, effort: int) -> list[list[int]]:
    """One of the shortest for each, then the longest first to whoever has least work; then exchanges with the
    slowest."""
    each = len(costs) // replicas
    falling = sorted(range(len(costs)), key=lambda k: (-costs[k].path, k))
    dealt = [[k] for k in falling[len(costs) - replicas :]]
    work = [costs[mine[0]].path for mine in dealt]
    for k in falling[: len(costs) - replicas]:
        r = min((r for r in range(replicas) if len(dealt[r]) < each), key=lambda r: (work[r], r))
        dealt[r].append(k)
        work[r] += costs[k].path
    _exchange(costs, dealt, effort)
    return dealt


def _exchange(costs: Sequence[_Cost], dealt: list[list[int]], effort: int) -> None:
    """The slowest replica exchanges one micro-batch with another replica, or else two, as long as that makes
    it quicker."""
    times = [_predicted([costs[k] for k in mine]) for mine in dealt]
    least, left = _least(costs, len(dealt)), effort
    while left > 0 and max(times) > least:
        a = max(range(len(dealt)), key=lambda r: (times[r], -r))
        others = sorted((r for r in range(len(dealt)) if r != a), key=lambda r: (times[r], r))
        for count, b in itertools.product((1, 2), others):
            exchange = _Exchange(costs, dealt[a], dealt[b], times[a])
            found, tried = exchange.best(count)
            left -= tried
            if found is not None:
                dealt[a], dealt[b] = found
                for r in (a, b):
                    times[r] = _predicted([costs[k] for k in dealt[r]])
                break
            if left <= 0:
                return
        else:
            return


class _Exchange:
    """Between two replicas; `limit`: what both must be quicker than."""

    def __init__(self, costs: Sequence[_Cost], mine: list[int], other: list[int], limit: float):
        self.costs, self.mine, self.other, self.limit = costs, mine, other, limit
        self.stages = range(len(costs[0].work))
        both = [costs[k] for k in mine + other]
        # Work that either may have on a stage, whichever of their micro-batches it has at its ends.
        self.most = [
            limit - min(one.head[s] for one in both) - min(one.tail[s] for one in both) for s in self.stages
        ]
        self.work = [[sum(costs[k].work[s] for k in side) for s in self.stages] for side in (mine, other)]

    def best(self, count: int) -> tuple[tuple[list[int], list[int]] | None, int]:
        """After exchanging this many with as many, and how many ways were looked at."""
        given, taken = self._parts(self.mine, count), self._parts(self.other, count)
        best, found = self.limit, None
        for x, of_x in given:
            for y, of_y in taken:
                if not all(self._may(s, of_y[s] - of_x[s]) for s in self.stages):
                    continue
                sides = (
                    [k for k in self.mine if k not in x] + [*y],
                    [k for k in self.other if k not in y] + [*x],
                )
                slower = max(_predicted([self.costs[k] for k in side]) for side in sides)
                if slower < best:
                    best, found = slower, sides
        return found, len(given) * len(taken)

    def _may(self, stage: int, more: float) -> bool:
        return self.work[0][stage] + more < self.most[stage] and self.work[1][stage] - more < self.most[stage]

    def _parts(self, side: list[int], count: int) -> list[tuple[tuple[int, ...], list[float]]]:
        parts = itertools.combinations(side, count) if count <= len(side) else ()
        return [(part, [sum(self.costs[k].work[s] for k in part) for s in self.stages]) for part in parts]


def _heaped(rising: list[int]) -> list[int]:
    """Short ones at both ends, where a pipeline fills and drains."""
    return rising[::2] + rising[1::2][::-1]
