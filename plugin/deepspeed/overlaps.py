# SPDX-License-Identifier: Apache-2.0
"""Layers that write to what they are given, where something else lies in the same memory: a view that was handed on with it, or one that the layer before keeps.

    overlaps = Overlaps(stock)                     # DeepSpeed's own partition
    overlaps.begin(stage, inputs)                  # the forward of a stage in step 1
    overlaps.made(layer, outputs, [function])      # inside of it, where only DeepSpeed cuts
    overlaps.end(stage, outputs, functions)
    overlaps.found(everyone)                       # layers after which it happens; `everyone`: `seen` of all ranks

Within a stage the other one changes as well, and across a border it does not: where only one of plan and 1F1B cuts, numbers are others.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .interleaved import bits_summed, has_bits
from .left import flat
from .plans import Stage


class Overlaps:
    """Of one rank."""

    def __init__(self, stock: list[int]):
        self._stock = set(stock[1:-1])
        self._given: list[tuple[int, torch.Tensor, int]] = []  # after which layer, and the sum of its bits
        self._looks = False
        self.seen: tuple[set[int], set[int]] = set(), set()  # layers after which memory is shared, and is written to

    def begin(self, stage: Stage, inputs: Any) -> None:
        self._looks, self._given = True, []
        if stage.first and stage.first not in self._stock:
            self._watch(stage.first - 1, inputs)

    def made(self, layer: int, outputs: Any, functions: Sequence[Any]) -> None:
        if self._looks:
            self._note_shared(layer, outputs, functions)
            self._watch(layer, outputs)

    def end(self, stage: Stage, outputs: Any, functions: Sequence[Any]) -> None:
        """`outputs`: before anything is copied."""
        if not self._looks:
            return
        self._looks = False
        self.seen[1].update(layer for layer, tensor, was in self._given if bits_summed(tensor) != was)
        self._given = []
        last = stage.layers[-1]
        if not stage.ends and last + 1 not in self._stock:
            self._note_shared(last, outputs, functions)

    @staticmethod
    def found(everyone: Iterable[tuple[set[int], set[int]]]) -> list[int]:
        shared, written = (set[int]().union(*sets) for sets in zip(*everyone, strict=True))
        return sorted(shared & written)

    def _watch(self, layer: int, values: Any) -> None:
        self._given += [(layer, tensor, bits_summed(tensor)) for tensor in flat(values) if torch.is_tensor(tensor) and has_bits(tensor)]

    def _note_shared(self, layer: int, outputs: Any, functions: Sequence[Any]) -> None:
        handed_on = _memory(flat(outputs))
        modules = [m for function in functions if isinstance(function, torch.nn.Module) for m in function.modules()]
        kept = [value for m in modules for value in (*flat(vars(m)), *m.buffers(recurse=False), *m.parameters(recurse=False))]
        if len(set(handed_on)) < len(handed_on) or set(handed_on) & set(_memory(kept)):
            self.seen[0].add(layer)


def overwritten(layers: list[int]) -> str:
    """In words."""
    shown = ", ".join(f"layer {layer + 1} what layer {layer} hands on" for layer in layers)
    return (
        f"layers write to what they are given ({shown}), and in the same memory lies another output, or what a layer keeps: whether that changes, too, depends on "
        "where the model is cut, and the plan cuts otherwise than 1F1B there: what reads it has other numbers"
    )


def _memory(values: Iterable[Any]) -> list[int]:
    return [value.untyped_storage().data_ptr() for value in values if torch.is_tensor(value) and has_bits(value) and value.numel()]
