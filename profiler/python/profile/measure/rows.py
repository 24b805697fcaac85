# SPDX-License-Identifier: Apache-2.0
"""What was measured, as the rows of a profile.

row = layer_cost(samples, footprint, state, input_bytes, output_bytes)  # one layer, wherever it was measured
rows = layer_rows(chain, rows_by_layer, memory, footprints)             # one row for each layer of a model
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ostinato import _profiler
from ostinato.profile.measure.footprint import Footprint
from ostinato.profile.measure.kept import Memory
from ostinato.profile.measure.samples import Samples, average, computing
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.job import Job
from ostinato.profile.model.shared import tied_key
from ostinato.profile.model.tensors import bytes_of
from ostinato.profile.settings import Settings, StateBytes

RECEIVE_BUFFERS = 2  # of each size: receives are posted one compute ahead (plugin/executor/itinerary.h)


def layer_cost(
    samples: Samples, memory: Footprint, state: StateBytes, input_bytes: int, output_bytes: int
) -> Any:
    """A LayerCost without index and name. All of its outputs count as kept."""
    cost = _profiler.LayerCost()
    cost.forward = samples.spread("forward")
    cost.backward = samples.spread("backward")
    cost.backward_input = samples.spread("input_half")
    cost.backward_weight = samples.spread("weight_half")
    cost.kept = max(0, memory.with_outputs)
    cost.forward_workspace = max(0, memory.forward_peak - cost.kept)
    cost.backward_workspace = memory.backward_peak  # in layer_rows(), the row's
    cost.parameters, cost.gradients, cost.optimizer_state = state.parameters, state.gradients, state.optimizer
    cost.reduced = state.reduced if state.reduced != state.gradients else None
    cost.inference_workspace = memory.inference_peak
    cost.step_together, cost.step_alone = state.step_together, state.step_alone
    cost.input_bytes, cost.output_bytes = input_bytes, output_bytes
    # With the gradients of the inputs, which are sent.
    between = max((sample.kept for sample in samples.input_half), default=0)
    cost.waiting = max(0, between - input_bytes)
    cost.weight_workspace = max((sample.peak for sample in samples.weight_half), default=0)
    return cost


def layer_inputs(bytes_by_row: dict[int, int]) -> list[Any]:
    return [_profiler.LayerInput(row, size) for row, size in bytes_by_row.items()]


def layer_rows(
    chain: Chain, costs: dict[int, Any], memory: Memory, footprints: dict[int, Footprint]
) -> list[Any]:
    """One row a layer of the model; layers that are the same repeat the measured row, but for what their
    followers let go of, and what those before them hold. `costs`, `footprints`: by layer.index."""
    rows = []
    for index, (name, layer) in enumerate(chain.rows):
        row = copy.copy(costs[layer.index])
        row.index, row.name = index, name
        if memory.holds_inputs(index):
            row.backward_workspace = footprints[layer.index].backward_beside
        freed = min(row.kept, memory.freed(index))
        row.kept, row.forward_workspace = row.kept - freed, row.forward_workspace + freed
        row.digest = chain.digests[index] if chain.digests else ""
        row.same_as = -1 if layer.index == index else layer.index
        if chain.after is not None:
            row.after = layer_inputs(chain.after[index])
        else:
            row.passed, row.released = (layer_inputs(of(index)) for of in (memory.passed, memory.released))
        row.sent = memory.freed(index) if chain.after is not None else memory.sent(index)
        rows.append(row)
    return rows


def mark_tied(
    rows: list[Any], layers: Sequence[Any], again: Sequence[tuple[list, list]], settings: Settings
) -> list[Any]:
    """Rows of layers that share state with an earlier one. `again`: by row, what of it is trained, and all of it. Of
    tied `layers`, how much is shared is not looked at, so all may be."""
    whole = [row.parameters + row.gradients + row.optimizer_state for row in rows]
    for row, most, (trained, state) in zip(rows, whole, again, strict=False):
        once = settings.state_bytes(trained, bytes_of(state))
        row.tied = min(most, once.parameters + once.gradients + once.optimizer)
    keys: set[Any] = set()
    for row, most, key in zip(rows, whole, map(tied_key, layers), strict=False):
        row.tied = most if key is not None and key in keys else row.tied
        keys.add(key)
    return rows


def with_labels(rows: list[Any], job: Job) -> list[Any]:
    """The last layer's loss reads them."""
    if rows and job.loss_fn is not None:
        rows[-1].labels = bytes_of(job.labels)
    return rows


def set_zero(profile: Any, settings: Settings, experts: bool) -> None:
    """Experts have data-parallel ranks apart, so with experts nothing counts as divided."""
    if settings.divides and not experts:
        profile.set_zero(settings.ranks, settings.zero)


def rank_cost(settings: Settings, read: int = 0, samples: Sequence[Samples] = ()) -> Any:
    """What each rank holds under the plugin, whichever layers it has: DeepSpeed's buckets, and the executor's
    buffers. `read`: ns for a batch; `samples`: of all layers, on a CPU. What blocks cost is measured
    elsewhere (machine/block_time.py)."""
    cost = _profiler.RankCost()
    cost.read, cost.computing, cost.average = read, computing(samples), average(samples)
    cost.held, cost.step = settings.bucket_bytes()
    cost.buffers = RECEIVE_BUFFERS
    return cost
