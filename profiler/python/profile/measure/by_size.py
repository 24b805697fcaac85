# SPDX-License-Identifier: Apache-2.0
"""What layers take for micro-batches of several sizes, and between them.

    rows = measure_sizes(job, settings, [512, 1024], progress)       # SizeCost: size, forward and backward by layer
    worst_between(rows)                                              # 0.04: how far from such a line a measured size lies

A size is the length of a sequence: dimension 1 of the first input. Every input and label that is as long
there is cut to the length, and so are both sides of a mask, [samples, heads, length, length]. Costs are kept
as measured, so attention's square is seen: the line between two sizes bends at each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.neighbours import busy_neighbours
from ostinato.profile.measure.passes import in_turns
from ostinato.profile.measure.samples import Progress
from ostinato.profile.model.build import build_chain
from ostinato.profile.model.job import Job
from ostinato.profile.model.tensors import map_tensors, tensors
from ostinato.profile.settings import Settings


def worst_between(rows: Sequence[Any]) -> float:
    """The largest share by which a measured size, all layers together, lies off the line through its
    neighbours; 0 of fewer than three."""
    points = [(row.size, sum(row.forward) + sum(row.backward)) for row in rows]
    triples = zip(points, points[1:], points[2:], strict=False)
    return max(
        (
            abs((a + (b - a) * (at - x) / (y - x)) / time - 1)
            for (x, a), (at, time), (y, b) in triples
            if time
        ),
        default=0.0,
    )


def tokens_of(inputs: Any) -> int:
    """Samples times length of the first input: its first two dimensions. 0 where it has none."""
    first = next(tensors(inputs), None)
    return 0 if first is None or first.dim() == 0 else math.prod(first.shape[:2])


def cut_to(length: int, inputs: Any, labels: Any) -> tuple[Any, Any]:
    """Of what is as long in dimension 1 as the first input. Raises ProfileError where that is shorter."""
    first = next(tensors(inputs), None)
    if first is None or first.dim() < 2:
        raise ProfileError("--sizes needs a first input with at least two dimensions, samples and length")
    whole = first.shape[1]
    if length > whole:
        raise ProfileError(
            f"--sizes: the script's first micro-batch has length {whole}, so it cannot be cut to {length}: let it begin with one that long"
        )

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > 1 and tensor.shape[1] == whole:
            return tensor[:, :length].contiguous()
        if tensor.dim() == 4 and tensor.shape[2:] == (whole, whole):
            return tensor[:, :, :length, :length].contiguous()
        return tensor

    return map_tensors(cut, inputs), map_tensors(cut, labels)


def check_lengths(job: Job, settings: Settings) -> None:
    """Raises ProfileError where the job cannot be measured at all of its lengths; runs its layers once on the
    shortest."""
    if job.lengths and job.module is not None:
        raise ProfileError("--sizes needs a PipelineModule, whose layers it measures one by one")
    for length in sorted(job.lengths, reverse=True):
        inputs, labels = cut_to(length, job.inputs, job.labels)
    if not job.lengths:
        return
    try:
        build_chain(replace(job, inputs=inputs, labels=labels), settings)
    except ProfileError as error:
        raise ProfileError(f"--sizes: of a micro-batch that was cut to length {length}, {error}") from error


def measure_sizes(job: Job, settings: Settings, lengths: Sequence[int], progress: Progress) -> list[Any]:
    """A row a length, rising. Of a job that check_lengths() accepts."""
    return [_measured(job, settings, length, progress) for length in sorted(set(lengths))]


def _measured(job: Job, settings: Settings, length: int, progress: Progress) -> Any:
    inputs, labels = cut_to(length, job.inputs, job.labels)
    chain = build_chain(replace(job, inputs=inputs, labels=labels), settings)
    with busy_neighbours(chain.layers, job.beside):
        samples = in_turns(
            chain.layers,
            job,
            split=False,
            progress=lambda _, done, total: progress(f"size {length}", done, total),
        )
    of = {layer.index: one for layer, one in zip(chain.layers, samples, strict=True)}
    times = [
        [_median(getattr(of[layer.index], phase)) for _, layer in chain.rows]
        for phase in ("forward", "backward")
    ]
    return _profiler.SizeCost(tokens_of(inputs), *times)


def _median(samples: Sequence[Any]) -> int:
    times = sorted(sample.time for sample in samples)
    return times[len(times) // 2]
