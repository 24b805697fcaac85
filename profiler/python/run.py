# SPDX-License-Identifier: Apache-2.0
"""From a job to a profile."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ostinato import _profiler
from ostinato.profile.model.chain import Chain, build_chain
from ostinato.profile.measure.device_times import measure_on_device
from ostinato.profile.model.graph import build_graph
from ostinato.profile.model.job import Job
from ostinato.profile.measure.footprint import Footprint, footprint
from ostinato.profile.measure.kept import Memory
from ostinato.profile.model.layer import Layer
from ostinato.profile.measure.passes import Samples, repeat_once
from ostinato.profile.measure.operators import EVENTS, Operators, add_operators
from ostinato.profile.settings import Settings, read_settings
from ostinato.profile.model.shardable import mark_shardable
from ostinato.profile.model.tensors import bytes_of, tensors

RECEIVE_BUFFERS = 2  # of each size: receives are posted one compute ahead (plugin/executor/itinerary.h)
Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


def no_progress(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


@contextmanager
def counted_memory(device: Any) -> Iterator[None]:
    """Memory is counted; what exists already is kept out of garbage collections, which makes those between
    measurements quick."""
    gc.collect()
    gc.freeze()
    try:
        with device.counted_memory():
            yield
    finally:
        gc.unfreeze()


def time_layers(job: Job, chain: Chain, progress: Progress) -> list[Samples]:
    """Round by round over all layers, so that what disturbs the machine for a while is spread over them."""
    samples = [Samples() for _ in chain.layers]
    rounds = job.warm_up + job.repeats
    for number in range(rounds):
        for layer, into in zip(chain.layers, samples, strict=True):
            warm = number >= job.warm_up
            repeat_once(layer, number - job.warm_up, into if warm else None)
        progress("layers", number + 1, rounds)
    return samples


def layer_cost(layer: Layer, samples: Samples, memory: Footprint, settings: Settings) -> Any:
    cost = _profiler.LayerCost()
    cost.forward = samples.spread("forward")
    cost.backward = samples.spread("backward")
    cost.backward_input = samples.spread("input_half")
    cost.backward_weight = samples.spread("weight_half")
    cost.kept = max(0, memory.with_outputs)
    cost.forward_workspace = memory.forward_peak
    cost.backward_workspace = memory.backward_peak  # in layer_rows(), that of the row
    cost.parameters = layer.parameter_bytes
    cost.gradients = settings.gradient_bytes(layer.parameters)
    cost.optimizer_state = settings.optimizer_bytes(layer.parameters)
    cost.step_together, cost.step_alone = settings.step_bytes(layer.parameters)
    cost.input_bytes = bytes_of(layer.inputs)
    between = max((sample.kept for sample in samples.input_half), default=0)  # with the gradients of the inputs, which are sent
    cost.waiting = max(0, between - cost.input_bytes)
    cost.weight_workspace = max((sample.peak for sample in samples.weight_half), default=0)
    cost.output_bytes = bytes_of(layer.outputs)
    return cost


def layer_inputs(bytes_by_row: dict[int, int]) -> list[Any]:
    return [_profiler.LayerInput(row, size) for row, size in bytes_by_row.items()]


def layer_rows(chain: Chain, costs: dict[int, Any], memory: Memory, footprints: dict[int, Footprint]) -> list[Any]:
    """One row a layer of the model; layers that are the same repeat the measured row, but for what their followers
    let go of, and what those before them hold. `costs`, `footprints`: by layer.index."""
    rows = []
    for index, (name, layer) in enumerate(chain.rows):
        row = copy.copy(costs[layer.index])
        row.index, row.name = index, name
        if memory.holds_inputs(index):
            row.backward_workspace = footprints[layer.index].backward_beside
        row.kept = max(0, row.kept - memory.freed(index))
        row.forward_workspace = max(0, row.forward_workspace - row.kept)
        row.digest = chain.digests[index] if chain.digests else ""
        row.same_as = -1 if layer.index == index else layer.index
        if chain.after is not None:
            row.after = layer_inputs(chain.after[index])
        else:
            row.passed, row.released = (layer_inputs(of(index)) for of in (memory.passed, memory.released))
        row.sent = memory.freed(index) if chain.after is not None else memory.sent(index)
        rows.append(row)
    return rows


def with_labels(rows: list[Any], job: Job) -> list[Any]:
    """The last layer's loss reads them."""
    if rows and job.loss_fn is not None:
        rows[-1].labels = bytes_of(job.labels)
    return rows


def rank_cost(settings: Settings) -> Any:
    """What each rank holds under the plugin, whichever layers it has: DeepSpeed's buckets, and the executor's buffers."""
    cost = _profiler.RankCost()
    cost.held, cost.step = settings.bucket_bytes()
    cost.buffers = RECEIVE_BUFFERS
    return cost


def build_rows(job: Job, settings: Settings) -> Chain:
    return build_chain(job, settings) if job.module is None else build_graph(job, settings)


def record_operators(job: Job, chain: Chain, progress: Progress) -> Operators:
    operators, recorder = Operators(), _profiler.OperatorRecorder(events_per_thread=EVENTS)
    for number, layer in enumerate(chain.layers):
        add_operators(layer, recorder, job.repeats, operators)
        progress("operators", number + 1, len(chain.layers))
    return operators


def describe(profile: Any, job: Job, settings: Settings) -> None:
    profile.model = job.name
    profile.set_device(kind=job.kind, torch=torch.__version__, **job.device.description())
    profile.warm_up, profile.repeats = job.warm_up, job.repeats
    first = next(tensors(job.inputs), None)
    profile.micro_batch_size = settings.micro_batch_size or (first.shape[0] if first is not None and first.dim() else 0)


def state_completeness(profile: Any, operators: Operators) -> None:
    state = profile.completeness
    state.reason = operators.why_incomplete()
    state.complete = not state.reason
    state.expected, state.seen = operators.expected, operators.seen
    state.dropped = operators.dropped + operators.unfinished
    state.out_of_range = operators.out_of_range


@dataclass
class Measured:
    samples: list[Samples]  # by layer of the chain
    operators: Operators
    timer: str
    timer_note: str = ""


def measure_chain(job: Job, chain: Chain, progress: Progress) -> Measured:
    if not job.device.own_clock:
        return Measured(time_layers(job, chain, progress), record_operators(job, chain, progress), "cpu")
    recorder = _profiler.OperatorRecorder(events_per_thread=EVENTS)
    times = measure_on_device(job, chain, recorder, EVENTS, progress)
    return Measured(times.samples, times.operators, times.timer, times.note)


def profile_layers(job: Job, progress: Progress = no_progress) -> Any:
    """Measures the job's layers on its device, in this process. Returns an `ostinato._profiler.Profile` without transfers.

    Raises ProfileError where a layer cannot be built or run.
    """
    settings = read_settings(job.config, job.optimizer, job.device.place.type != "cpu")
    with torch.enable_grad(), counted_memory(job.device):
        chain = build_rows(job, settings)
        memory = Memory(chain)
        measured = measure_chain(job, chain, progress)
        footprints = {layer.index: footprint(layer) for layer in chain.layers}
    measurements = zip(chain.layers, measured.samples, strict=True)
    costs = {layer.index: layer_cost(layer, samples, footprints[layer.index], settings) for layer, samples in measurements}
    profile = _profiler.Profile()
    describe(profile, job, settings)
    profile.timer, profile.timer_note = measured.timer, measured.timer_note
    profile.model_sha256 = chain.digest
    profile.layers = mark_shardable(with_labels(layer_rows(chain, costs, memory, footprints), job), job.layers)
    profile.rank = rank_cost(settings)
    profile.operators = measured.operators.rows
    state_completeness(profile, measured.operators)
    return profile
