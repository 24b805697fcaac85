"""Which outputs outlive the forward of what reads them.

A layer measured by itself holds its outputs. In a model an output is freed as soon as its readers have run, unless the backward
of one of them or its own needs it (`nn.Linear` needs its input, `nn.Tanh` its output), or a reader hands the same memory on. What the backward needs is found by letting go of each tensor and looking whether its memory came back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ostinato.profile.chain import Chain
from ostinato.profile.layer import Layer, call, prepare
from ostinato.profile.measure import quiet_collector
from ostinato.profile.tensors import tensors


@dataclass
class Held:
    """By tensor, in the order of tensors()."""

    inputs: list[bool]  # the backward needs it
    outputs: list[bool]
    alias: list[int | None]  # of an output: the input whose memory it is
    first: list[int]  # of an output: the first one that shows the same memory, often itself
    sizes: list[int]  # of an output: bytes of its memory


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def still_held(values: list[torch.Tensor], device: Any) -> list[bool]:
    """Empties the list, and tells of each tensor whether its memory stayed when the last one that shows it was let go."""
    places, stayed = [storage(tensor) for tensor in values], {}
    while values:
        place, size, before = storage(values[0]), values[0].untyped_storage().nbytes(), device.live_bytes()
        values.pop(0)
        stayed[place] = before - device.live_bytes() < size
    return [stayed[place] for place in places]


def held_by(layer: Layer) -> Held:
    """Runs the layer once."""
    with quiet_collector():
        _, inputs = prepare(layer)
        outputs = call(layer, inputs)
        taken, given = list(tensors(inputs)), list(tensors(outputs))
        graph = [get_gradient_edge(tensor) for tensor in given if tensor.requires_grad]
        sources, places = [storage(tensor) for tensor in taken], [storage(tensor) for tensor in given]
        sizes = [tensor.untyped_storage().nbytes() for tensor in given]
        alias = [sources.index(place) if place in sources else None for place in places]
        del inputs, outputs
        kept_outputs = still_held(given, layer.device)
        kept_inputs = still_held(taken, layer.device)
        del graph
    # An input that is also an output was still held as that input: it is the input's turn that tells.
    shared = [kept if source is None else kept_inputs[source] for kept, source in zip(kept_outputs, alias, strict=True)]
    return Held(kept_inputs, shared, alias, [places.index(place) for place in places], sizes)


class Memory:
    """Of a whole model: whose memory is whose, and until when."""

    def __init__(self, chain: Chain):
        by_layer = {id(layer): held_by(layer) for layer in chain.layers}
        self.held = [by_layer[id(layer)] for _, layer in chain.rows]
        self.readers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of (row, output): (row, input)
        for row, sources in enumerate(chain.sources()):
            for number, source in enumerate(sources[: len(self.held[row].inputs)]):
                if source is not None:
                    giver, output = source
                    self.readers.setdefault((giver, self.held[giver].first[output]), []).append((row, number))

    def needed(self, row: int, output: int) -> bool:
        """Whether an output is in memory once all that read it have run. Those that nobody reads are the model's."""
        readers = self.readers.get((row, output), [])
        if self.held[row].outputs[output] or not readers:
            return True
        return any(self.needed_by(reader, number) for reader, number in readers)

    def needed_by(self, row: int, number: int) -> bool:
        """For its own backward, or to be handed on to a row that needs it."""
        held = self.held[row]
        handed_on = (held.first[output] for output, source in enumerate(held.alias) if source == number)
        return held.inputs[number] or any(self.needed(row, output) for output in handed_on)

    def freed(self, row: int) -> int:
        held = self.held[row]
        own = (output for output, first in enumerate(held.first) if first == output and held.alias[output] is None)
        return sum(held.sizes[output] for output in own if not self.needed(row, output))


def freed_outputs(chain: Chain) -> list[int]:
    """Of each row: bytes of its outputs that are freed when all that read them have run."""
    memory = Memory(chain)
    return [memory.freed(row) for row in range(len(chain.rows))]
