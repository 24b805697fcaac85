# SPDX-License-Identifier: Apache-2.0
"""Layers that draw random numbers, and layers that remember."""

import random

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .base import WIDTH, Block, hazard, sequences, spec, stack


# Random numbers


class Dropping(Block):
    def __init__(self, p=0.2):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.mix(x)))


class Skipped(Block):
    """Stochastic depth: Python's generator says which layers run."""

    def forward(self, x):
        return x if self.training and random.random() < 0.3 else super().forward(x)


class Shaken(Block):
    """Numbers of Python's and of NumPy's generator."""

    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * random.random() + 0.1 * numpy.random.rand())


class Noisy(Block):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn_like(x)


class OwnGenerator(Block):
    """Draws from a generator of its own, in the order of its forwards."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn(x.shape, generator=self.generator)


class Attending(nn.Module):
    """Dropout that is no module: inside of scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, -1)
        return x + functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)


hazard("dropout")(lambda: stack(Dropping))
hazard("dropout, seed_layers", pipeline={"seed_layers": True})(lambda: stack(Dropping))
hazard("dropout of no module", batch=sequences)(lambda: stack(Attending))
hazard("noise")(lambda: stack(Noisy))
hazard("a generator of its own", keeps_contract=False)(lambda: stack(OwnGenerator))
hazard("noise of Python's and NumPy's")(lambda: stack(Shaken))
# A stage that skips all it has ends in no gradient.
hazard("stochastic depth")(lambda: [spec(Block), *stack(Skipped, count=5)])


# State


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.mix(x)))


class CheckpointedNorm(Normed):
    """A checkpoint of its own: each run of its forward moves the statistics."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class FixedNorm(Normed):
    """Its statistics stay in evaluation mode, as in fine-tuning."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


class Buffers(Block):
    """A running mean in a buffer, one that is no part of the state, one that a forward replaces, and one that the
    first forward registers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.rand(WIDTH), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        with torch.no_grad():
            if not hasattr(self, "last"):
                self.register_buffer("last", torch.zeros(WIDTH))
            self.mean.lerp_(x.mean(0), 0.1)
            self.steps, self.last = self.steps + 1, 0.9 * self.last + x.mean(0)
        return super().forward(x - 0.1 * self.mean + 0.01 * self.last) * self.scale


class Counting(Block):
    """A number of Python's in the layer counts its forwards and counts in them."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 1e-3 * self.calls)


class Cached(Block):
    """A tensor that its first forward makes, in no buffer."""

    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.linspace(0.9, 1.1, x.size(-1))
        return super().forward(x * self.cache)


class Reparametrized(Block):
    """`by`: what is done to its linear layer."""

    def __init__(self, by):
        super().__init__()
        self.mix = by(self.mix)


hazard("BatchNorm")(lambda: stack(Normed))
hazard("BatchNorm in a checkpoint")(lambda: stack(CheckpointedNorm))
hazard("BatchNorm, statistics fixed")(lambda: stack(FixedNorm))
hazard("buffers")(lambda: stack(Buffers))
hazard("state of Python's", keeps_contract=False)(lambda: stack(Counting))
hazard("a cached tensor")(lambda: stack(Cached))
hazard("weight_norm")(lambda: stack(Reparametrized, nn.utils.parametrizations.weight_norm))
hazard("weight_norm, by hook")(lambda: stack(Reparametrized, nn.utils.weight_norm))
hazard("spectral_norm")(lambda: stack(Reparametrized, nn.utils.parametrizations.spectral_norm))
