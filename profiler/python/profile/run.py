# SPDX-License-Identifier: Apache-2.0
"""From a job to a profile."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from ostinato import _profiler
from ostinato.errors import counted
from ostinato.profile.machine import freed_memory
from ostinato.profile.machine.device import waited_for_a_core
from ostinato.profile.measure.by_size import check_lengths, measure_sizes, tokens_of
from ostinato.profile.measure.neighbours import busy_neighbours
from ostinato.profile.measure.footprint import Footprint, footprint
from ostinato.profile.measure.halves import TIMES_AGAIN, settle
from ostinato.profile.measure.kept import Memory
from ostinato.profile.measure.operators import Operators, record_operators
from ostinato.profile.measure.optimizer import StepClock
from ostinato.profile.measure.passes import in_turns
from ostinato.profile.measure.rows import layer_cost, layer_rows, mark_tied, rank_cost, set_zero, with_labels
from ostinato.profile.measure.samples import Progress, Samples, counted_memory, no_progress
from ostinato.profile.model.lanes import mark_lanes
from ostinato.profile.model.build import build_chain
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.graph import build_graph
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer
from ostinato.profile.model.outputs import of_outputs
from ostinato.profile.model.program import build_program
from ostinato.profile.model.shared import held_again, held_by, of_shared
from ostinato.profile.model.shardable import mark_shardable
from ostinato.profile.model.tensors import bytes_of, tensors
from ostinato.profile.settings import Settings, read_settings
from ostinato.restrictions import of_experts


MOST_WAITING = 0.1  # share of the time in which a process waits for a core, where its times still stand


def build_rows(job: Job, settings: Settings) -> Chain:
    if job.module is None:
        return build_chain(job, settings)
    return (build_program if isinstance(job.module, torch.jit.ScriptModule) else build_graph)(job, settings)


def settings_of(job: Job) -> Settings:
    settings = read_settings(job.config, job.optimizer, job.device.place.type != "cpu")
    return settings if job.optimizer_numbers is None else replace(settings, states=job.optimizer_numbers)


def describe(profile: Any, job: Job, settings: Settings) -> None:
    profile.model, profile.slices = job.name, job.slices
    profile.set_device(kind=job.kind, torch=torch.__version__, **job.device.description())
    profile.warm_up, profile.repeats = job.warm_up, job.repeats
    first = next(tensors(job.inputs), None)
    profile.micro_batch_size = settings.micro_batch_size or (
        first.shape[0] if first is not None and first.dim() else 1
    )


@dataclass
class MeasuredChain:
    samples: list[Samples]  # by layer of the chain
    operators: Operators
    steps: dict[int, int]  # ns of the optimizer's step, by layer.index
    timer_note: str


def noted(why_not_cupti: str, beside: int, adapted: int, waiting: float) -> str:
    """`adapted`: layers whose halves of the backward were made to add up (measure/halves.py). `waiting`: the share of
    the time in which this process waited for a core."""
    neighbours = f"{counted(beside, 'process')} computed at the same time, as other ranks do"
    halves = (
        f"the halves of the backward of {counted(adapted, 'layer')} took less than the whole each time they were measured, and are "
        "written as long as the whole: the machine was busy"
    )
    late = (
        f"this process waited for a core for {100 * waiting:.0f} % of the time, so times are too long: measure where nothing else "
        "computes"
    )
    said = {
        why_not_cupti: bool(why_not_cupti),
        neighbours: beside,
        halves: adapted,
        late: waiting > MOST_WAITING,
    }
    return "; ".join(text for text, holds in said.items() if holds)


def measure_chain(job: Job, settings: Settings, chain: Chain, progress: Progress) -> MeasuredChain:
    clock = StepClock.of(job.config, job.optimizer, settings, job.device)
    beside = 0 if job.device.own_clock else job.beside
    if not job.device.own_clock:
        freed_memory.keep()  # as the engine does under a plan
    waited, began = waited_for_a_core(), time.monotonic_ns()
    with busy_neighbours(chain.layers, beside):
        samples = in_turns(chain.layers, job, progress=progress)
        if job.slices == 1:  # else layers run collectives, as often on each rank
            for layer, of in zip(chain.layers, samples, strict=True):
                layer.varies = len({sample.kept for sample in of.forward}) > 1
        adapted = settle(
            chain.layers,
            samples,
            lambda layers: in_turns(layers, job, progress=progress),
            TIMES_AGAIN if job.slices == 1 else 0,
        )
        operators, steps = (
            record_operators(chain.layers, job.repeats, progress),
            measure_steps(job, chain, clock),
        )
    waiting = (waited_for_a_core() - waited) / max(1, time.monotonic_ns() - began)
    note = noted(operators.timer_note, beside, adapted, 0 if job.device.own_clock else waiting)
    return MeasuredChain(samples, operators, steps, note)


def measure_steps(job: Job, chain: Chain, clock: StepClock) -> dict[int, int]:
    return {layer.index: clock.time(layer.parameters, job.warm_up, job.repeats) for layer in chain.layers}


def cost_of(layer: Layer, samples: Samples, memory: Footprint, settings: Settings) -> Any:
    state = settings.state_bytes(layer.parameters, layer.parameter_bytes)
    return layer_cost(samples, memory, state, bytes_of(layer.inputs), bytes_of(layer.outputs))


def profile_layers(job: Job, progress: Progress = no_progress) -> Any:
    """Measures the job's layers on its device, in this process. Returns an `ostinato._profiler.Profile`
    without transfers.

    Raises ProfileError where a layer cannot be built or run.
    """
    settings = settings_of(job)
    with torch.enable_grad(), counted_memory(job.device):
        check_lengths(job, settings)  # before what may take an hour
        chain = build_rows(job, settings)
        measured = measure_chain(job, settings, chain, progress)
        memory = Memory(chain)
        footprints = {layer.index: footprint(layer) for layer in chain.layers}
    measurements = zip(chain.layers, measured.samples, strict=True)
    costs = {
        layer.index: cost_of(layer, samples, footprints[layer.index], settings)
        for layer, samples in measurements
    }
    for index, cost in costs.items():
        cost.step_time = measured.steps[index]
    profile = _profiler.Profile()
    describe(profile, job, settings)
    profile.timer, profile.timer_note = measured.operators.timer, measured.timer_note
    profile.model_sha256 = chain.digest
    profile.tokens = tokens_of(job.inputs)
    if job.stages:
        profile.set_run(job.stages, job.micro_batches)
    held = [held_by(layer) for layer in job.held or job.layers]
    rows = with_labels(layer_rows(chain, costs, memory, footprints), job)
    rows = mark_tied(rows, job.layers, held_again(held) or chain.tied, settings)
    profile.layers = mark_lanes(mark_shardable(rows, job.layers), job.layers)
    if job.device.own_clock:  # a host runs ahead of its accelerator
        profile.rank = rank_cost(settings)
    else:
        of_layer = {layer.index: s for layer, s in zip(chain.layers, measured.samples, strict=True)}
        profile.rank = rank_cost(settings, job.read, [of_layer[layer.index] for _, layer in chain.rows])
    experts = [index for index, (_, layer) in enumerate(chain.rows) if layer.experts]
    owners = [stage for stage, count in enumerate(job.stages) for _ in range(count)]
    staying = of_outputs({index: layer.stays for index, (_, layer) in enumerate(chain.rows[:-1])}, job.stages)
    profile.restrictions = [
        one.row
        for one in (
            *job.restrictions,
            *of_experts(experts, job.stages),
            *(staying if job.layers else ()),
            *(of_shared(job.layers, held, owners) if owners else ()),
        )
    ]
    set_zero(profile, settings, bool(experts))
    profile.operators = measured.operators.rows
    if job.lengths:
        with torch.enable_grad(), counted_memory(job.device):
            profile.sizes = measure_sizes(job, settings, job.lengths, progress)
    profile.completeness = measured.operators.completeness()
    return profile
