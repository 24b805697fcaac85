# SPDX-License-Identifier: Apache-2.0
"""More of what people's models have in them, as in strangers. Options.change names it (CHANGES, TIED)."""

import functools
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn

from . import strangers
from .strangers import LAYERS, WIDTH, Dropping, Plain


class Conjugating(Plain):
    """Hands on a conjugate, which for torch is a mark on the numbers that are not conjugated."""

    def forward(self, hidden):
        made = super().forward(hidden)
        return torch.complex(made, made * 0.5).conj()


class Negating(Plain):
    def forward(self, hidden):
        return torch._neg_view(super().forward(hidden))


class FromConjugate(Plain):
    """Its gradient is a conjugate, too."""

    def forward(self, hidden):
        hidden = hidden.conj()
        return super().forward(hidden.real + 0.3 * hidden.imag)


class ReadsGradients(Plain):
    def forward(self, hidden):
        gradient = self.lin.weight.grad
        return super().forward(hidden) * (1.0 if gradient is None else 1.0 + float(gradient.abs().mean()))


class Retaining(Plain):
    """Reads the gradient of what it made for the micro-batch before."""

    def __init__(self):
        super().__init__()
        self.last = None

    def factor(self):
        return (
            1.0 if self.last is None or self.last.grad is None else 1.0 + float(self.last.grad.abs().mean())
        )

    def forward(self, hidden):
        made = super().forward(hidden) * self.factor()
        if made.requires_grad:
            made.retain_grad()
            self.last = made
        return made


NORMS = {"last": 1.0}


class SetsAGlobal(Plain):
    """In its backward, for the forwards that come."""

    def forward(self, hidden):
        made = super().forward(hidden) * NORMS["last"]
        if made.requires_grad:
            made.register_hook(lambda gradient: NORMS.update(last=1.0 + float(gradient.abs().mean())))
        return made


class ByRank(Plain):
    def forward(self, hidden):
        return super().forward(hidden) * (1 + 0.1 * dist.get_rank())


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


class BuiltByRank(Plain):
    def __init__(self):
        super().__init__()
        self.rank = dist.get_rank()

    def forward(self, hidden):
        return super().forward(hidden) * (1 + 0.1 * self.rank)


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


class Referring(Plain):
    """Uses the weights of another module, which its list hides."""

    def __init__(self, other):
        super().__init__()
        self.other = [other]

    def forward(self, hidden):
        return super().forward(hidden) @ self.other[0].lin.weight


def over_a_module():
    hidden_linear = nn.Linear(WIDTH, WIDTH)  # each rank draws other numbers
    return lambda hidden: hidden_linear(hidden)


def over_equal_modules():
    torch.manual_seed(3)
    return over_a_module()


def with_a_tensor():
    return functools.partial(torch.add, torch.randn(WIDTH))


CHANGES: dict[str, dict[int, Any]] = {
    "plain": {},
    "dropout": {1: Dropping, 5: Dropping},
    "conjugate": {1: Conjugating, 2: FromConjugate, 5: Conjugating, 6: FromConjugate},
    "negative": {1: Negating, 5: Negating},
    "gradients": {1: ReadsGradients, 5: ReadsGradients},
    "retained": {1: Retaining, 5: Retaining},
    "global by a backward": {1: SetsAGlobal},
    "by rank": {layer: ByRank for layer in range(LAYERS)},
    "of its class": {layer: OfItsClass for layer in range(LAYERS)},
    "built by rank": {layer: BuiltByRank for layer in range(LAYERS)},
    "compiled inside": {layer: CompiledInside for layer in range(LAYERS)},
    "compiled method": {layer: CompiledMethod for layer in range(LAYERS)},
    "compiled in place": {layer: CompiledInPlace for layer in range(LAYERS)},
    "over a module": {5: over_a_module},
    "over equal modules": {1: over_equal_modules, 5: over_equal_modules},
    "with a tensor": {5: with_a_tensor},
    "hidden": {3: lambda: Referring(Plain())},
}


class More:
    micro_batches, loss = staticmethod(strangers.micro_batches), staticmethod(strangers.loss)

    @staticmethod
    def layers_of(options) -> list:
        from deepspeed.pipe import LayerSpec

        NORMS["last"] = 1.0
        if options.change in TIED:
            return TIED[options.change]([LayerSpec(Plain) for _ in range(LAYERS)])
        kinds = [CHANGES[options.change].get(layer, Plain) for layer in range(LAYERS)]
        return [LayerSpec(kind) if isinstance(kind, type) else kind() for kind in kinds]


def closes_over_weights(layers: list, user: int) -> list:
    torch.manual_seed(1)  # the same on every rank
    layers[4] = used = Plain()
    layers[user] = lambda hidden: hidden @ used.lin.weight
    return layers


def refers_to_weights(layers: list) -> list:
    torch.manual_seed(1)
    layers[4] = Plain()
    layers[6] = Referring(layers[4])
    return layers


TIED = {
    "closed over": functools.partial(closes_over_weights, user=6),
    "closed over in a stage": functools.partial(closes_over_weights, user=5),
    "referred to": refers_to_weights,
}


def writes_to_labels(hidden, labels):
    labels.mul_(0.9).add_(0.01)
    return nn.functional.mse_loss(hidden, labels)


class Writing(More):
    loss = staticmethod(writes_to_labels)
