# SPDX-License-Identifier: Apache-2.0
"""Stages measured as a whole, beside what the profile's rows say they cost.

A stage is some layers in a row. From layer rows: their times and kept bytes added up, and at each layer its
workspace above what is live by then. From operator rows: self times added up, and the cost of a launch, which
is not in any operator's self time, for each call. `check_profile()` rebuilds the layers of each stage (one
stage at a time) and measures them together.

A shared machine can be faster or slower by then than when it was profiled. So the stage's layers are measured
once more, one by one, in turns with the stage, and `drift` says how their time has changed: a prediction is
judged against `measured / drift`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.profile.errors import ProfileError
from ostinato.profile.measure.footprint import footprint
from ostinato.profile.measure.passes import in_turns
from ostinato.profile.measure.samples import Progress, Samples, counted_memory, no_progress
from ostinato.profile.model.build import Builder, build_chain, has_branches
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer
from ostinato.profile.model.stage import build_stage, cuts_of, whole_of
from ostinato.profile.settings import read_settings


@dataclass
class Figures:
    """Of one stage and one micro-batch."""

    forward: int  # ns
    backward: int
    kept: int  # bytes; its input is another stage's output, and its outputs go when they are sent
    workspace: (
        int  # peak of forward and backward above what is kept, with the outputs and the gradient of them
    )


@dataclass
class StageCheck:
    first: int  # layer
    last: int  # the one after the stage
    measured: Figures
    from_layers: Figures
    operators_forward: int  # ns, from operator rows
    operators_backward: int
    drift: float  # time of its layers now over their time in the profile


def of_layers(parts: Sequence[Any], first: int) -> int:
    """Bytes that belong to layers from `first` on."""
    return sum(part.bytes for part in parts if part.layer >= first)


def kept_by(rows: Sequence[Any]) -> int:
    """Bytes that these layers hold as one stage, when their outputs have been sent."""
    return max(0, sum(row.kept for row in rows) - of_layers(rows[-1].released, rows[0].index))


def predict(rows: Sequence[Any]) -> Figures:
    """The cost of consecutive layers as one stage."""
    live = peak = 0
    for row in rows:
        live += row.kept
        there = live + row.forward_workspace + of_layers(row.passed, rows[0].index)
        peak = max(peak, there, live - of_layers(row.released, rows[0].index) + row.backward_workspace)
    kept = kept_by(rows)
    return Figures(
        sum(r.forward.median for r in rows), sum(r.backward.median for r in rows), kept, peak - kept
    )


def measured_row(row: Any) -> int:
    """The layer whose measurement this row repeats."""
    return row.index if row.same_as < 0 else row.same_as


def operators_of(profile: Any, phase: str) -> dict[int, tuple[int, int]]:
    """(self time, calls) of each measured layer."""
    found: dict[int, tuple[int, int]] = {}
    for row in profile.operators:
        if row.phase == phase:
            time, calls = found.get(row.layer, (0, 0))
            found[row.layer] = time + row.self_time.median, calls + row.calls
    return found


def launching(profile: Any, phase: str) -> tuple[int, int]:
    """(ns in which no operator runs but the next one is being launched, calls) of a micro-batch, over all
    layers."""
    operators = operators_of(profile, phase)
    rest = calls = 0
    for row in profile.layers:
        time, count = operators.get(measured_row(row), (0, 0))
        rest += getattr(row, phase).median - time
        calls += count
    return max(0, rest), calls


def launch_share(profile: Any) -> float:
    """Part of a micro-batch, from 0 to 1, that goes into launching operators."""
    total = sum(row.forward.median + row.backward.median for row in profile.layers)
    return sum(launching(profile, phase)[0] for phase in ("forward", "backward")) / max(1, total)


def from_operators(profile: Any, rows: Sequence[Any], phase: str) -> int:
    operators, (rest, all_calls) = operators_of(profile, phase), launching(profile, phase)
    costs = [operators.get(measured_row(row), (0, 0)) for row in rows]
    return sum(time for time, _ in costs) + rest * sum(calls for _, calls in costs) // max(1, all_calls)


def measure_stage(stage: Layer, layers: Sequence[Layer], job: Job) -> tuple[Figures, list[Samples]]:
    """The stage as a whole, and each of its layers by itself, in turns."""
    together, *alone = in_turns([stage, *layers], job, split=False)
    forward, backward = (together.spread(phase).median for phase in ("forward", "backward"))
    memory = footprint(stage)
    return Figures(forward, backward, memory.kept, memory.workspace), alone


def time_of(samples: Samples) -> int:
    return samples.spread("forward").median + samples.spread("backward").median


def check_stage(job: Job, chain: Chain, profile: Any, stage: Layer, last: int) -> StageCheck:
    rows = profile.layers[stage.index : last]
    layers = list({id(layer): layer for _, layer in chain.rows[stage.index : last]}.values())
    measured, alone = measure_stage(stage, layers, job)
    now = dict(zip((layer.index for layer in layers), map(time_of, alone), strict=True))
    predicted = predict(rows)
    drift = sum(now[measured_row(row)] for row in rows) / max(1, predicted.forward + predicted.backward)
    forward, backward = (from_operators(profile, rows, phase) for phase in ("forward", "backward"))
    return StageCheck(stage.index, last, measured, predicted, forward, backward, drift)


def refuse_graph(job: Job) -> None:
    """Raises ProfileError where the job cannot be measured as stages."""
    if job.module is not None or has_branches(job.layers):
        raise ProfileError("--check needs a model that is a chain of layers, not a graph")


def check_profile(job: Job, profile: Any, stages: int, progress: Progress = no_progress) -> list[StageCheck]:
    """Measures the job again as that many stages of about equal time. Raises ProfileError as profile_layers()
    does, and where refuse_graph() does."""
    refuse_graph(job)
    settings, checks = read_settings(job.config, job.optimizer), []
    cuts = cuts_of(profile, stages)
    with torch.enable_grad(), counted_memory(job.device):
        chain = build_chain(job, settings)
        for number, (first, last) in enumerate(cuts, start=1):
            stage = whole_of(job, chain, build_stage(job, chain, Builder(settings, job.device), first, last))
            checks.append(check_stage(job, chain, profile, stage, last))
            progress("stages measured as a whole", number, len(cuts))
    return checks
