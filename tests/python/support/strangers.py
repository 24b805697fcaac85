# SPDX-License-Identifier: Apache-2.0
"""A chain of small layers, some of which are replaced by what people's models have in them. Options.change
names it (CHANGES)."""

from collections import namedtuple
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH, BATCH = 8, 6, 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + torch.tanh(self.lin(hidden))


# ---- what layers hand on

Pair = namedtuple("Pair", "hidden mask")


class Marking(Plain):
    def forward(self, hidden):
        made = super().forward(hidden)
        made.gate = 2.0
        return made


class Marked(Plain):
    def forward(self, hidden):
        return super().forward(hidden) * getattr(hidden, "gate", 1.0)


class Loud(torch.Tensor):
    """Of a class with operators of its own."""


# ---- what layers do inside


class Dropping(Plain):
    def forward(self, hidden):
        return nn.functional.dropout(super().forward(hidden), 0.3, self.training)


class Attending(Plain):
    """Dropout that no name says."""

    def forward(self, hidden):
        made = super().forward(hidden)[None]
        return nn.functional.scaled_dot_product_attention(made, made, made, dropout_p=0.3 * self.training)[0]


class Rerunning(Dropping):
    """A layer that checkpoints what it has of its class."""

    def forward(self, hidden):
        return checkpoint(super().forward, hidden, use_reentrant=False)


class NoTruth:
    """Who asks whether it is true, or equal to something, gets no answer: as of an array of several numbers."""

    def __bool__(self):
        raise RuntimeError("neither true nor false")

    def __len__(self):
        return int(bool(self))

    def __eq__(self, _other):
        return bool(self)


SCALES = torch.tensor([0.5, 0.25])


class OfItsClass(Plain):
    """What its class and its module have has no truth of its own."""

    table = torch.tensor([1.0, 1.5])
    numbers = numpy.array([1.0, 2.0])
    odd = NoTruth()

    def __init__(self):
        super().__init__()
        self.mine, self.own = numpy.array([3.0, 4.0]), NoTruth()

    def forward(self, hidden):
        held = self.own is not None and self.odd is not None and len(self.mine)
        return (
            super().forward(hidden)
            * (self.table * SCALES).sum()
            * float(self.numbers[0] + self.mine[0])
            / held
        )


class Shuffling(Plain):
    """What its constructor draws is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.order, self.scales = torch.randperm(WIDTH), torch.rand(WIDTH).tolist()

    def forward(self, hidden):
        return super().forward(hidden)[:, self.order] * torch.tensor(self.scales)


class CompiledInside(Plain):
    def __init__(self):
        super().__init__()
        self.lin = torch.compile(self.lin, backend="eager")


class CompiledMethod(Plain):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(lambda hidden: torch.tanh(self.lin(hidden)), backend="eager")

    def forward(self, hidden):
        return hidden + self.inner(hidden)


class CompiledInPlace(Plain):
    def __init__(self):
        super().__init__()
        self.lin.compile(backend="eager")


def over_equal_modules():
    torch.manual_seed(3)  # the same on every rank
    hidden_linear = nn.Linear(WIDTH, WIDTH)
    return lambda hidden: hidden_linear(hidden)


# By name: layers by their index.
CHANGES: dict[str, dict[int, Any]] = {
    "": {},
    "attribute": {1: Marking, 2: Marked},
    "dropout": {1: Dropping, 5: Dropping},
    "attention": {1: Attending, 5: Attending},
    "checkpoint": {1: Rerunning, 5: Rerunning},
    "of its class": {layer: OfItsClass for layer in range(LAYERS)},
    "shuffled": {layer: Shuffling for layer in range(LAYERS)},
    "compiled inside": {layer: CompiledInside for layer in range(LAYERS)},
    "compiled method": {layer: CompiledMethod for layer in range(LAYERS)},
    "compiled in place": {layer: CompiledInPlace for layer in range(LAYERS)},
    "over equal modules": {1: over_equal_modules, 5: over_equal_modules},
}


def shuffled_by_its_spec() -> Any:
    """A LayerSpec with a build() of its own, which does not call DeepSpeed's."""
    from deepspeed.pipe import LayerSpec

    class Spec(LayerSpec):
        def build(self, log=False):
            return self.typename()

    return Spec(Shuffling)


CHANGES["shuffled by its spec"] = {layer: shuffled_by_its_spec for layer in range(LAYERS)}


def closes_over_weights(layers: list) -> list:
    torch.manual_seed(1)  # the same on every rank
    layers[4] = used = Plain()
    layers[5] = lambda hidden: hidden @ used.lin.weight
    return layers


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    if options.change == "closed over in a stage":
        return closes_over_weights([LayerSpec(Plain) for _ in range(LAYERS)])
    kinds = [CHANGES[options.change].get(layer, Plain) for layer in range(LAYERS)]
    return [LayerSpec(kind) if isinstance(kind, type) else kind() for kind in kinds]


loss = nn.functional.mse_loss


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def writes_to_labels(hidden, labels):
    labels.mul_(0.9).add_(0.01)
    return nn.functional.mse_loss(hidden, labels)


class Writing:
    layers_of, micro_batches = staticmethod(layers_of), staticmethod(micro_batches)
    loss = staticmethod(writes_to_labels)
