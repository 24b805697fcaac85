# SPDX-License-Identifier: Apache-2.0
"""What "auto" has measured on micro-batches that differ in size: costs of one size, and how they grow.

    clusters = clusters_of([512, 530, 2048])                   # [512, 530] are one point
    points = points_of(samples, [512, 530, 2048], clusters)    # ((521, ns), (2048, ns))
    at_size(layer, [512, 530, 2048], clusters, reference=1027) # its samples as if every micro-batch had that size
    rows = rows_of([(forward, backward), ...], clusters)       # SizeCost, as `ostinato profile --sizes` has them

A sample is of the micro-batch at its place, pass after pass. Sizes within a quarter of each other are one point, and no point lies below
one of a smaller size: so the line beyond the last two has no slope that noise made.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ostinato.profile.measure.by_size import Points, at
from ostinato.profile.measure.samples import Sample, Samples

from ostinato import _profiler

from .layer_clock import Measured

APART = 1.25  # from the smallest of one point to the smallest of the next

Clusters = list[list[float]]


def clusters_of(sizes: Sequence[float]) -> Clusters:
    """Rising; each with its sizes."""
    found: Clusters = []
    for size in sorted(set(sizes)):
        if found and size < APART * found[-1][0]:
            found[-1].append(size)
        else:
            found.append([size])
    return found


def points_of(samples: Sequence[Sample], sizes: Sequence[float], clusters: Clusters) -> Points:
    """() where the samples are not whole passes over the micro-batches."""
    if not samples or len(samples) % len(sizes):
        return ()
    of_sizes = [(sizes[i % len(sizes)], sample.time) for i, sample in enumerate(samples)]
    middles = [statistics.fmean(cluster) for cluster in clusters]
    times = [
        statistics.median(time * middle / size for size, time in of_sizes if size in cluster) for middle, cluster in zip(middles, clusters, strict=True)
    ]
    return tuple(zip(middles, accumulate(times, max), strict=True))


def at_size(layer: Measured, sizes: Sequence[float], clusters: Clusters, reference: float) -> tuple[Measured, tuple[Points, Points]]:
    """The layer as if every micro-batch were of size `reference`, and its curves, forward and backward."""
    curves = points_of(layer.samples.forward, sizes, clusters), points_of(layer.samples.backward, sizes, clusters)
    forward, backward = (
        _resized(samples, sizes, points, reference) for samples, points in zip((layer.samples.forward, layer.samples.backward), curves, strict=True)
    )
    last = reference / sizes[-1]  # whose bytes were noted
    inputs, outputs = (round(size * last) for size in (layer.input_bytes, layer.output_bytes))
    return replace(layer, samples=Samples(forward, backward), input_bytes=inputs, output_bytes=outputs), curves


def _resized(samples: list[Sample], sizes: Sequence[float], points: Points, reference: float) -> list[Sample]:
    if not points:
        return samples
    return [_of_size(sample, sizes[i % len(sizes)], points, reference) for i, sample in enumerate(samples)]


def _of_size(sample: Sample, size: float, points: Points, reference: float) -> Sample:
    """Times follow the curve, bytes the size."""
    usual, more = at(points, size), reference / size
    grown = at(points, reference) / usual if usual > 0 else more
    time, computed, kept, peak = sample.time * grown, sample.computed * grown, sample.kept * more, sample.peak * more
    return replace(sample, time=round(time), computed=round(computed), kept=round(kept), peak=round(peak))


def rows_of(curves: Sequence[tuple[Points, Points]], clusters: Clusters) -> list[Any]:
    """One a point; none where there is one point alone, or a size is no whole number. `curves`: of every layer, forward and backward."""
    if len(clusters) < 2 or any(size != int(size) for cluster in clusters for size in cluster):
        return []
    middles = [statistics.fmean(cluster) for cluster in clusters]
    times = [[[round(at(points, middle)) if points else 0 for points in phase] for phase in zip(*curves, strict=True)] for middle in middles]
    return [_profiler.SizeCost(round(middle), *phases) for middle, phases in zip(middles, times, strict=True)]
