# SPDX-License-Identifier: Apache-2.0
"""A chain of eight layers, some of which draw random numbers: `Options.changed` puts others into their
places."""

import random

import numpy
import torch
from torch import nn

WIDTH, BATCH, LAYERS = 16, 4, 8


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))


class Dropping(Plain):
    """Draws from torch's generator."""

    def forward(self, x):
        return x + nn.functional.dropout(torch.tanh(self.mix(x)), 0.3, self.training)


class Module(Plain):
    """The same by a module."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.mix(x)))


class Checkpointed(Dropping):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class OfPython(Plain):
    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * random.random() * self.training)


class OfNumpy(Plain):
    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * numpy.random.rand() * self.training)


class Late(Plain):
    """Draws from its second step on; before the first, one forward has shown that it draws nothing."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return nn.functional.dropout(super().forward(x), 0.3, self.training and self.calls > 5)


class Noisy(Plain):
    """Draws in evaluation, too, and other numbers than in training."""

    def forward(self, x):
        noise = torch.rand_like(x) if self.training else torch.rand_like(x[:, :4]).repeat(1, 4)
        return super().forward(x) + 0.1 * noise


class OfPythonEverywhere(Plain):
    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * random.random())


class Skipping(Plain):
    """As LayerDrop: draws once, and what it draws says whether it draws more."""

    def forward(self, x):
        if self.training and torch.rand(()) < 0.5:
            return x
        return x + nn.functional.dropout(torch.tanh(self.mix(x)), 0.3, self.training)


class Normal(Plain):
    """An odd number of normal numbers: torch keeps the other half of a pair for the next call."""

    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randn(3).sum() * self.training


class Pair(Plain):
    """x -> (x, y), both with gradients."""

    def forward(self, x):
        return super().forward(x), torch.tanh(self.mix(x))


class Sum(Plain):
    """(x, y) -> x"""

    def forward(self, pair):
        return super().forward(pair[0] + pair[1] * pair[0])


class Scripted(Plain):
    def __init__(self):
        super().__init__()
        self.more = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)))

    def forward(self, x):
        return super().forward(x) + self.more(x)


class InPlace(Plain):
    """Changes what it is given."""

    def forward(self, x):
        return super().forward(x.mul_(0.9))


class OwnGradient(Plain):
    def forward(self, x):
        made = super().forward(x)
        return (
            made + torch.autograd.grad(made.square().sum(), x, create_graph=True)[0]
            if self.training
            else made
        )


class Turning(Plain):
    """Hands on a view that is not contiguous."""

    def forward(self, x):
        return super().forward(x).t()


def loss(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    changed = dict(options.changed)
    return [LayerSpec(changed.get(index, Plain)) for index in range(LAYERS)]


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)
