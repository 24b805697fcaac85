"""Which outputs outlive the forward of the next layer.

A layer measured by itself holds its outputs. In a chain an output is freed as soon as the next layer has run, unless the
backward of one of the two needs it (`nn.Linear` needs its input, `nn.Tanh` its output), or the next layer hands the same
memory on. What the backward needs is found by letting go of each tensor and looking whether its memory came back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ostinato import _profiler
from ostinato.profile.chain import Chain, Layer
from ostinato.profile.measure import call, prepare, quiet_collector
from ostinato.profile.tensors import tensors


@dataclass
class Held:
    """By tensor, in the order of tensors()."""

    inputs: list[bool]  # the backward needs it
    outputs: list[bool]
    alias: list[int | None]  # of an output: the input whose memory it is
    sizes: list[int]  # of an output: bytes of its memory; 0 where an earlier output shares it


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def still_held(values: list[torch.Tensor]) -> list[bool]:
    """Empties the list, and tells of each tensor whether its memory stayed."""
    held = []
    while values:
        size, before = values[0].untyped_storage().nbytes(), _profiler.live_bytes()
        values.pop(0)
        held.append(before - _profiler.live_bytes() < size)
    return held


def held_by(layer: Layer) -> Held:
    """Runs the layer once."""
    with quiet_collector():
        _, inputs = prepare(layer)
        outputs = call(layer, inputs)
        taken, given = list(tensors(inputs)), list(tensors(outputs))
        graph = [get_gradient_edge(tensor) for tensor in given if tensor.requires_grad]
        places = [storage(tensor) for tensor in given]
        sizes = [0 if place in places[:n] else t.untyped_storage().nbytes()
                 for n, (place, t) in enumerate(zip(places, given, strict=True))]  # fmt: skip
        sources = [storage(tensor) for tensor in taken]
        alias = [sources.index(place) if place in sources else None for place in places]
        del inputs, outputs
        kept_outputs = still_held(given)
        kept_inputs = still_held(taken)
        del graph
    # An input that is also an output was still held as that input: it is the input's turn that tells.
    shared = [kept if source is None else kept_inputs[source] for kept, source in zip(kept_outputs, alias, strict=True)]
    return Held(kept_inputs, shared, alias, sizes)


def needed(chain: list[Held], index: int, output: int) -> bool:
    """Whether output `output` of layer `index` is in memory once the next layer has run. The last layer's is."""
    if index + 1 == len(chain) or chain[index].outputs[output]:
        return True
    after = chain[index + 1]
    if output >= len(after.inputs) or after.inputs[output]:
        return True
    handed_on = (number for number, source in enumerate(after.alias) if source == output)
    return any(needed(chain, index + 1, number) for number in handed_on)


def freed_outputs(chain: Chain) -> list[int]:
    """Of each layer of the model: bytes of its outputs that are freed when the next layer has run."""
    by_layer = {id(layer): held_by(layer) for layer in chain.layers}
    held = [by_layer[id(layer)] for _, layer in chain.rows]
    return [freed_of(held, index) for index in range(len(held))]


def freed_of(held: list[Held], index: int) -> int:
    own: Any = zip(range(len(held[index].sizes)), held[index].sizes, held[index].alias, strict=True)
    return sum(size for output, size, alias in own if alias is None and not needed(held, index, output))
