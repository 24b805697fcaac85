# SPDX-License-Identifier: Apache-2.0
"""Which outputs outlive the forward of what reads them.

A layer measured by itself holds its outputs. In a model an output is freed as soon as its readers have run,
unless the backward of one of them or its own needs it (`nn.Linear` needs its input, `nn.Tanh` its output), or
a reader hands the same memory on. What the backward needs is found by letting go of each tensor and looking
whether its memory came back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ostinato.profile.measure.footprint import RUNS
from ostinato.profile.measure.samples import quiet_collector
from ostinato.profile.model.chain import Chain
from ostinato.profile.model.layer import Layer, prepare
from ostinato.profile.model.tensors import tensors


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
    """Empties the list, and tells of each tensor whether its memory stayed when the last one that shows it
    was let go."""
    places, stayed = [storage(tensor) for tensor in values], {}
    while values:
        place, size, before = storage(values[0]), values[0].untyped_storage().nbytes(), device.live_bytes()
        values.pop(0)
        stayed[place] = before - device.live_bytes() < size
    return [stayed[place] for place in places]


def held_by(layer: Layer) -> Held:
    """Runs the layer once; one that varies more often, and what is held in one of the runs counts as held."""
    return functools.reduce(in_either, [held_in_one(layer) for _ in range(RUNS if layer.varies else 1)])


def in_either(a: Held, b: Held) -> Held:
    alias = [x if x == y else None for x, y in zip(a.alias, b.alias, strict=True)]
    # Where an output is an input's memory in one run alone, that input stays as long as the output.
    handed_on = {x for pair in zip(a.alias, b.alias, strict=True) if len(set(pair)) > 1 for x in pair}
    return Held(
        inputs=[x or y or i in handed_on for i, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=True))],
        outputs=[x or y for x, y in zip(a.outputs, b.outputs, strict=True)],
        alias=alias,
        first=[x if x == y else i for i, (x, y) in enumerate(zip(a.first, b.first, strict=True))],
        sizes=list(map(max, zip(a.sizes, b.sizes, strict=True))),
    )


def held_in_one(layer: Layer) -> Held:
    with quiet_collector():
        _, inputs = prepare(layer)
        outputs = layer.run(inputs)
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
    shared = [
        kept if source is None else kept_inputs[source]
        for kept, source in zip(kept_outputs, alias, strict=True)
    ]
    return Held(kept_inputs, shared, alias, [places.index(place) for place in places], sizes)


Place = tuple[int, int]  # a row and one of its outputs, which owns memory
CALLER = sys.maxsize  # later than every row


class Memory:
    """Of a whole model: who owns which memory, and until when."""

    def __init__(self, chain: Chain):
        by_layer = {id(layer): held_by(layer) for layer in chain.layers}
        self.held = [by_layer[id(layer)] for _, layer in chain.rows]
        self.sources = chain.sources()
        self.readers: dict[Place, list[Place]] = {}  # of (row, output): (row, input)
        for row, sources in enumerate(self.sources):
            for number, source in enumerate(sources[: len(self.held[row].inputs)]):
                if source is not None:
                    giver, output = source
                    self.readers.setdefault((giver, self.held[giver].first[output]), []).append((row, number))

    def needed(self, row: int, output: int) -> bool:
        """Whether an output is in memory once all that read it have run. Outputs that none reads are the
        model's."""
        return self.held[row].outputs[output] or bool(self.users(row, output))

    def users(self, row: int, output: int) -> set[int]:
        """Later rows whose backwards need an output, and CALLER where the model hands it on."""
        if not self.readers.get((row, output)):
            return {CALLER}
        found: set[int] = set()
        for reader, number in self.readers[row, output]:
            held = self.held[reader]
            if held.inputs[number]:
                found.add(reader)
            for handed_on in {
                held.first[given] for given, source in enumerate(held.alias) if source == number
            }:
                found |= self.users(reader, handed_on)
        return found

    def owned(self, row: int) -> list[int]:
        """Its outputs that own their memory, once each."""
        held = self.held[row]
        return [
            output
            for output, first in enumerate(held.first)
            if first == output and held.alias[output] is None
        ]

    def owner(self, row: int, output: int) -> Place | None:
        """The owner of an output's memory; None: the model's inputs."""
        held = self.held[row]
        source = held.alias[held.first[output]]
        if source is None:
            return row, held.first[output]
        given = self.sources[row][source]
        return None if given is None else self.owner(*given)

    def freed(self, row: int) -> int:
        """Bytes of its outputs that are freed when all that read them have run."""
        return sum(self.held[row].sizes[output] for output in self.owned(row) if not self.needed(row, output))

    def by_row(self, places: Iterable[Place]) -> dict[int, int]:
        """Bytes, by the row whose memory it is."""
        found: dict[int, int] = {}
        for row, output in sorted(places):
            found[row] = found.get(row, 0) + self.held[row].sizes[output]
        return found

    def passed(self, row: int) -> dict[int, int]:
        """Memory of earlier rows that it reads and that no backward needs."""
        owners = {
            self.owner(*source)
            for source in self.sources[row][: len(self.held[row].inputs)]
            if source is not None
        }
        return self.by_row(place for place in owners if place is not None and not self.needed(*place))

    def released(self, row: int) -> dict[int, int]:
        """Memory that its outputs show and that no backward up to its own needs, but a later one, or the
        model's caller."""
        owners = {self.owner(row, output) for output in range(len(self.held[row].first))}
        return self.by_row(place for place in owners if place is not None and self.needed_later(place, row))

    def holds_inputs(self, row: int) -> bool:
        """Whether some backward before its own needs memory that its own needs of its inputs."""
        held = self.held[row].inputs
        needed = [
            source
            for source, mine in zip(self.sources[row], held, strict=False)
            if mine and source is not None
        ]
        owners = {self.owner(*source) for source in needed}
        return any(place is not None and self.needed_until(place, row - 1) for place in owners)

    def sent(self, row: int) -> int:
        """Bytes of its outputs that no backward up to its own holds."""
        owners = {self.owner(row, output) for output in range(len(self.held[row].first))}
        free = [place for place in owners if place is not None and not self.needed_until(place, row)]
        return sum(self.held[giver].sizes[output] for giver, output in free)

    def needed_until(self, place: Place, row: int) -> bool:
        return self.held[place[0]].outputs[place[1]] or any(user <= row for user in self.users(*place))

    def needed_later(self, place: Place, row: int) -> bool:
        users = self.users(*place)
        return not self.held[place[0]].outputs[place[1]] and bool(users) and min(users) > row
