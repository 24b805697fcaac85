"""Where stages hand on several tensors with gradients, DeepSpeed and autograd add gradients up in different orders.

DeepSpeed runs Tensor.backward() for each output of a rank, one after the other. A stage of the plan that ends where a part of
DeepSpeed's own partition ends does the same, and keeps every bit. Where only one of the two has a border between two layers,
and several tensors cross it, sums are equal up to rounding: nobody knows before the first step what layers hand on, so it is
said after it (claims), and where it happens for the first time in a later step.
"""

import functools

import torch

from .plans import Chunk


class Borders:
    """Of one engine whose plan is to equal 1F1B bit for bit. `stock`: DeepSpeed's own partition of the model; `split`: stages whose
    backward runs in two halves, which start from all outputs at once.
    """

    def __init__(self, stock: list[int], split: set[int]):
        self._stock, self._split = set(stock[1:-1]), split
        self._new: set[int] = set()  # layers after which several tensors cross a border that only one side has
        self._told: set[int] = set()

    def one_by_one(self, chunk: Chunk) -> bool:
        """Whether the stage's backward starts from one output after the other. Recomputing it several times is not possible."""
        return chunk.layers[-1] + 1 in self._stock and not chunk.recomputes

    def watch(self, model, chunks: list[Chunk]) -> None:
        """Looks from here on at what the stages hand on, and at what crosses DeepSpeed's borders inside of them."""
        for chunk in chunks:
            for at, layer in enumerate(chunk.layers[:-1]):
                if layer + 1 in self._stock:
                    self._watch_layer(model.functions_of(chunk), at, layer)

    def _watch_layer(self, functions: list, at: int, layer: int) -> None:
        function = functions[at]
        if isinstance(function, torch.nn.Module):
            function.register_forward_hook(lambda _m, _i, made: self._look(layer, made))
            return

        @functools.wraps(function)
        def looked_at(*args):
            made = function(*args)
            self._look(layer, made)
            return made

        functions[at] = looked_at

    def _look(self, layer: int, made) -> None:
        if _gradients(made) > 1:
            self._new.add(layer)

    def handed_on(self, chunk: Chunk, outputs) -> None:
        if _gradients(outputs) > 1 and (chunk.stage in self._split or not self.one_by_one(chunk)):
            self._new.add(chunk.layers[-1])

    def new(self) -> list[int]:
        """The layers after which sums are in another order than DeepSpeed's, ascending, that were seen since the last call."""
        found = sorted(self._new - self._told)
        self._told |= self._new
        self._new.clear()
        return found


def _gradients(outputs) -> int:
    """How many of the outputs a backward starts from."""
    return sum(torch.is_tensor(t) and t.requires_grad for t in outputs) if isinstance(outputs, tuple) else 1
