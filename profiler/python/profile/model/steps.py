# SPDX-License-Identifier: Apache-2.0
"""Rows of a model that is known call by call: operators of a graph, submodules of a saved program, with their
branches.

    builder = StepBuilder(trainable, device, {"x": inputs})
    (hidden,) = builder.add(GraphStep("linear", key, run, takes=["x"], state=[weight], gives=lambda made: [("h", made[0])]))
    builder.chain                 # a row a step; steps that do the same on inputs of the same shapes are one layer

A value is known by a name, which can be any key of a dict: a node of a graph, the id() of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.profile.errors import ProfileError
from ostinato.profile.model.chain import Chain, Source
from ostinato.profile.model.identity import input_key
from ostinato.profile.model.layer import Layer, run_once
from ostinato.profile.model.tensors import Copies, bytes_of, map_tensors, tensors


@dataclass
class GraphStep:
    name: str
    key: Any  # equal for steps that do the same on inputs of the same shapes
    run: Callable[[Sequence[Any]], tuple]  # of the values that it takes, in their order
    takes: Sequence[Hashable]  # values of earlier steps and of the model's inputs, once each
    state: Sequence[torch.Tensor]  # parameters, buffers and constants that it reads
    # What `run` gave as named values, in the order of tensors().
    gives: Callable[[tuple], Iterable[tuple[Hashable, Any]]]


def shapes_of(values: Any) -> list[torch.Tensor]:
    """Tensors without data, one per distinct memory: what a transfer carries."""
    distinct = {tensor.untyped_storage().data_ptr(): tensor for tensor in reversed(list(tensors(values)))}
    return [torch.empty_like(tensor, device="meta") for tensor in distinct.values()]


class StepBuilder:
    """Runs the model once, step by step and without gradients, and makes a row of each. `trainable`: id() of
    parameters; `given`: the model's inputs, by name."""

    def __init__(self, trainable: set[int], device: Any, given: dict[Hashable, Any]):
        self.trainable, self.device, self.values = trainable, device, dict(given)
        # Row, first of its output tensors that this value has.
        self.sources: dict[Hashable, tuple[int, int]] = {}
        # Of an output tensor: whether a backward goes on behind it.
        self.flows: dict[tuple[int, int], bool] = {}
        self.known: dict[Any, Layer] = {}
        # Of an output tensor: where its memory is, and bytes.
        self.memory: dict[tuple[int, int], tuple[int, int]] = {}
        self.reads: list[list[Source]] = []
        self.after: list[dict[int, int]] = []
        self.chain = Chain(reads=self.reads, after=self.after)
        self.held: set[int] = set()  # id() of the rows' state

    def add(self, step: GraphStep) -> tuple:
        """The result of the step."""
        index = len(self.chain.rows)
        name = f"{index}:{step.name}"
        reads = [source for value in step.takes for source in self._sources_of(value)]
        self.reads.append(reads)
        self.after.append(self._bytes_from(reads))
        reached = [source is not None and self.flows[source] for source in reads]
        state = list({id(tensor): tensor for tensor in step.state}.values())
        learned = self._learned(state)
        again = [tensor for tensor in state if id(tensor) in self.held]
        self.chain.tied.append((self._learned(again), again))
        self.held |= set(map(id, state))
        copies = Copies()
        taken = tuple(map_tensors(copies.of, self.values[value]) for value in step.takes)
        key = (step.key, input_key(taken), tuple(reached), bool(learned))
        outputs = self._run(name, step)
        if key not in self.known:
            layer = Layer(
                index, name, step.run, taken, None, learned, bytes_of(state), reached, False, self.device
            )
            self.known[key] = layer
            run_once(layer)
            layer.outputs = shapes_of(outputs)
            self.chain.layers.append(layer)
        layer = self.known[key]
        self.chain.rows.append((name, layer))
        self._give(index, step.gives(outputs), layer.flows)
        return outputs

    def forget(self, values: Iterable[Hashable]) -> None:
        """No step reads them any more."""
        for value in values:
            del self.values[value]

    def _learned(self, state: Iterable[torch.Tensor]) -> list[Any]:
        return [tensor for tensor in state if id(tensor) in self.trainable]

    def _run(self, name: str, step: GraphStep) -> tuple:
        """Runs on the values themselves: in-place operators change what later steps read."""
        try:
            with torch.no_grad():
                return step.run([self.values[value] for value in step.takes])
        except ProfileError:
            raise
        except Exception as error:
            raise ProfileError(f"step {name} raised {type(error).__name__}: {in_short(error)}") from error

    def _sources_of(self, value: Hashable) -> list[Source]:
        """By tensor of the value: the row and output it is; None where it is the model's input."""
        count = sum(1 for _ in tensors(self.values[value]))
        if value not in self.sources:
            return [None] * count
        row, first = self.sources[value]
        return [(row, first + number) for number in range(count)]

    def _bytes_from(self, reads: Sequence[Source]) -> dict[int, int]:
        """What a transfer from each earlier row carries: memory that is read twice is sent once."""
        rows: dict[int, dict[int, int]] = {}
        for source in filter(None, reads):
            place, size = self.memory[source]
            taken = rows.setdefault(source[0], {})
            taken[place] = max(size, taken.get(place, 0))
        return {row: sum(taken.values()) for row, taken in sorted(rows.items())}

    def _give(self, index: int, given: Iterable[tuple[Hashable, Any]], flows: list[bool]) -> None:
        first = 0
        for name, value in given:
            self.values[name], self.sources[name] = value, (index, first)
            for tensor in tensors(value):
                self.memory[index, first] = (tensor.untyped_storage().data_ptr(), bytes_of(tensor))
                self.flows[index, first] = flows[first]
                first += 1


def in_short(error: Exception) -> str:
    """Without the frames that TorchScript's interpreter puts before the message."""
    return str(error).strip().rpartition("\nRuntimeError: ")[2]
