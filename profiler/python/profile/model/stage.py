# SPDX-License-Identifier: Apache-2.0
"""Stages of about equal time, and some layers in a row built as one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ostinato.profile.model.build import Builder, with_loss
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, recomputed, under_autocast
from ostinato.profile.model.tensors import bytes_of


def balanced(weights: Sequence[int], stages: int) -> list[tuple[int, int]]:
    """Cuts of a chain where the running sum passes an equal share; every stage gets at least one layer."""
    stages = min(stages, len(weights))
    total, passed, cuts = sum(weights), 0, [0]
    for index, weight in enumerate(weights[:-1], start=1):
        passed += weight
        left = stages - len(cuts)
        due = passed * stages >= total * len(cuts) or len(weights) - index == left
        if left and due:
            cuts.append(index)
    return list(zip(cuts, [*cuts[1:], len(weights)], strict=True))


def cuts_of(profile: Any, stages: int) -> list[tuple[int, int]]:
    """Of the profile's layers, by their times: first, and the one after the last."""
    return balanced([row.forward.median + row.backward.median for row in profile.layers], stages)


@dataclass
class StageLayer:
    """A layer of a stage."""

    name: str
    run: Callable[[Any], Any]


@dataclass
class BuiltStage:
    first: int  # layer
    last: int  # the one after it
    steps: list[StageLayer]
    parameters: list[nn.Parameter]  # that are trained
    state: list[torch.Tensor]  # all parameters and buffers


def run_all(steps: Sequence[StageLayer], inputs: Any) -> Any:
    for step in steps:
        inputs = step.run(inputs)
    return inputs


def build_stage(job: Job, chain: Chain, builder: Builder, first: int, last: int) -> BuiltStage:
    """Layers [first, last), built again."""
    stage = BuiltStage(first, last, [], [], [])
    for index in range(first, last):
        name, known = chain.rows[index]
        run, module = builder.build(name, job.layers[index], chain.built[index])
        run = under_autocast(run, job.device.place, job.autocast)
        run = recomputed(run) if known.checkpointed else run
        if index == len(job.layers) - 1 and job.loss_fn is not None:
            run = with_loss(run, job)
        stage.steps.append(StageLayer(name, run))
        if isinstance(module, nn.Module):
            stage.parameters += [p for p in module.parameters() if p.requires_grad]
            stage.state += [*module.parameters(), *module.buffers()]
    return stage


def whole_of(job: Job, chain: Chain, stage: BuiltStage) -> Layer:
    """The stage as one layer, for measure/passes.py."""
    start, end = chain.rows[stage.first][1], chain.rows[stage.last - 1][1]
    name = f"layers {stage.first} to {stage.last - 1}"
    run = functools.partial(run_all, stage.steps)
    return Layer(stage.first, name, run, start.inputs, end.outputs, stage.parameters, bytes_of(stage.state),
                 start.reached, False, job.device, wanted=end.wanted)  # fmt: skip
