# SPDX-License-Identifier: Apache-2.0
"""Where stages hand on what makes a run equal 1F1B up to rounding: several tensors with gradients, or such as are not contiguous.

DeepSpeed and autograd add gradients of several tensors up in different orders: DeepSpeed runs
Tensor.backward() for each output of a rank, one after the other, through all layers of the rank. A
stage of the plan that begins and ends where a part of DeepSpeed's own partition does the same, and
keeps every bit. Where several tensors cross the end of any other stage, or of any other part, sums are
equal up to rounding. So they are where a tensor that crosses a border that only one of the two has, or
its gradient, is a view that is not contiguous (x.transpose(0, 1), or channels_last): a transfer lays it
out anew, and for other strides operators may take other kernels. What a border takes away (crossings) is gone in 1F1B
where only DeepSpeed's partition cuts.
Nobody knows before the first step what layers hand on, so it is said after it (claims), and where it happens for
the first time in a later step.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .crossings import stripped
from .module import StagedLayers
from .overlaps import Overlaps
from .plans import Stage


@dataclass
class Place:
    """Where a stage keeps what it runs as a layer, after which DeepSpeed cuts and the plan does not."""

    functions: list
    at: int
    layer: int
    hooked: Any = None  # the module that has the hook
    looking: Any = None  # what stands here for a function, or in a module for its compiled call


class Borders:
    """Of one engine whose plan is to equal 1F1B bit for bit. `stock`: DeepSpeed's own partition of the model; `split`: stages whose
    backward runs in two halves, which start from all outputs at once.
    """

    def __init__(self, stock: list[int], split: set[int], overlaps: Overlaps | None):
        self._stock, self._split = set(stock[1:-1]), split
        self._begins = dict(zip(stock[1:-1], stock, strict=False))  # by the layer after a part's last
        self._overlaps = overlaps  # is told of what crosses DeepSpeed's borders inside of stages
        self._several: set[int] = set()  # layers after which several tensors cross a border that only one side has
        self._strided: set[int] = set()  # or such as are not contiguous
        self._stripped: dict[int, str] = {}  # by layer: what 1F1B takes from what it hands on; "": told
        self._told: tuple[set[int], set[int]] = set(), set()
        self._places: list[Place] = []

    def one_by_one(self, stage: Stage) -> bool:
        """Whether the stage's backward starts from one output after the other. Recomputing it several times is not possible."""
        return self._begins.get(stage.layers[-1] + 1) == stage.first and not stage.recomputes

    def watch(self, model: StagedLayers, stages: list[Stage]) -> None:
        """Looks from here on at what the stages hand on, and at what crosses DeepSpeed's borders inside of them."""
        inside = [(stage, at, layer) for stage in stages for at, layer in enumerate(stage.layers[:-1]) if layer + 1 in self._stock]
        self._places = [Place(model.functions_of(stage), at, layer) for stage, at, layer in inside]

    def follow(self) -> None:
        """Before each step: layers may have been replaced since, or compiled."""
        for place in self._places:
            function = place.functions[place.at]
            if not isinstance(function, torch.nn.Module):
                if function is not place.looking:
                    place.looking = place.functions[place.at] = self._looking(function, place.layer)
                continue
            if function is not place.hooked:
                place.hooked = function
                function.register_forward_hook(lambda module, _i, made, layer=place.layer: self._look(layer, made, module))
            compiled = function._compiled_call_impl
            if compiled is not None and compiled is not place.looking:
                place.looking = function._compiled_call_impl = self._looking(compiled, place.layer)

    def _looking(self, function: Callable, layer: int) -> Callable:
        @functools.wraps(function)
        def looked_at(*args, **kwargs):
            made = function(*args, **kwargs)
            self._look(layer, made, function)
            return made

        vars(looked_at)["ostinato_given"] = function
        return looked_at

    def _look(self, layer: int, made, function) -> None:
        if torch.compiler.is_compiling():
            return  # a compiled layer is looked at from outside
        if _gradients(made) > 1:
            self._several.add(layer)
        if layer not in self._stripped and (what := stripped(made)):
            self._stripped[layer] = what
        self._look_at_strides(layer, made)
        if self._overlaps is not None:
            self._overlaps.made(layer, made, [function])

    def handed_on(self, stage: Stage, outputs) -> None:
        last = stage.layers[-1]
        if _gradients(outputs) > 1 and (stage.index in self._split or not self.one_by_one(stage)):
            self._several.add(last)
        if last + 1 not in self._stock:
            self._look_at_strides(last, outputs)

    def received(self, stage: Stage, inputs) -> None:
        """Before the stage's forward: looks at gradients on their way back."""
        if stage.first - 1 >= 0 and stage.first not in self._stock:
            self._look_at_strides(stage.first - 1, inputs)

    def _look_at_strides(self, layer: int, values) -> None:
        for tensor in values if isinstance(values, tuple) else (values,):
            if torch.is_tensor(tensor) and (tensor.is_floating_point() or tensor.is_complex()) and layer not in self._strided:
                self._note_strides(layer, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(functools.partial(self._note_strides, layer))

    def _note_strides(self, layer: int, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self._strided.add(layer)

    def new(self) -> tuple[list[int], list[int]]:
        """What was seen since the last call: layers, ascending, after which sums are in another order than DeepSpeed's, and after which
        what crosses is not contiguous.
        """
        seen = self._several, self._strided
        found = [sorted(layers - told) for layers, told in zip(seen, self._told, strict=True)]
        self._told = set(self._several), set(self._strided)
        return found[0], found[1]

    def new_stripped(self) -> dict[int, str]:
        """By layer, what 1F1B takes from what it hands on, since the last call."""
        found = {layer: what for layer, what in self._stripped.items() if what}
        self._stripped |= dict.fromkeys(found, "")
        return found


def _gradients(outputs) -> int:
    """How many of the outputs a backward starts from."""
    return sum(torch.is_tensor(t) and t.requires_grad for t in outputs) if isinstance(outputs, tuple) else 1
