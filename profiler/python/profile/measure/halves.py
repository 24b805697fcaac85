# SPDX-License-Identifier: Apache-2.0
"""Whole backwards and their halves beside each other.

The halves do all that the whole does, so together they cannot take less. Where they were measured to, noise
fell on the whole, and a plan with split backwards would gain what is no gain.

    again = settle(layers, samples, in_turns_again)     # measures those layers again; how many had to be made to add up
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ostinato import _profiler
from ostinato.profile.measure.samples import Sample, Samples
from ostinato.profile.model.layer import Layer

MISSING = 0.05  # of the whole: what the halves may take less, besides their spread
MATTERS = 0.01  # of a micro-batch
TIMES_AGAIN = 2


def together(samples: Samples) -> list[int]:
    """What the halves took, by repeat."""
    return [
        first.time + second.time
        for first, second in zip(samples.input_half, samples.weight_half, strict=True)
    ]


def add_up(samples: Samples) -> bool:
    """Also where the backward was not measured in halves."""
    halves = together(samples)
    return not halves or _profiler.spread_of(halves).high >= (1 - MISSING) * samples.spread("backward").low


def micro_batch(samples: Sequence[Samples]) -> int:
    return sum(of_layer.spread(which).median for of_layer in samples for which in ("forward", "backward"))


def is_wrong(samples: Samples, whole_batch: int) -> bool:
    if add_up(samples):
        return False
    return (
        samples.spread("backward").median - _profiler.spread_of(together(samples)).median
        > MATTERS * whole_batch
    )


def made_to_add_up(samples: Samples) -> Samples:
    """The halves as long as the whole, in their proportion."""
    whole, halves = samples.spread("backward").median, max(1, _profiler.spread_of(together(samples)).median)

    def longer(half: list[Sample]) -> list[Sample]:
        return [replace(sample, time=sample.time * whole // halves) for sample in half]

    return replace(samples, input_half=longer(samples.input_half), weight_half=longer(samples.weight_half))


def settle(
    layers: Sequence[Layer],
    samples: list[Samples],
    measure_again: Callable[[Sequence[Layer]], list[Samples]],
    tries: int = TIMES_AGAIN,
) -> int:
    """Replaces samples. How many layers' halves did not add up however often they were measured. `tries`: 0 for
    layers that run collectives, which each rank must run as often."""
    everything = micro_batch(samples)
    wrong = [i for i, of_layer in enumerate(samples) if is_wrong(of_layer, everything)]
    for _ in range(tries):
        if not wrong:
            break
        for i, of_layer in zip(wrong, measure_again([layers[i] for i in wrong]), strict=True):
            samples[i] = of_layer
        wrong = [i for i in wrong if is_wrong(samples[i], everything)]
    for i in wrong:
        samples[i] = made_to_add_up(samples[i])
    return len(wrong)
