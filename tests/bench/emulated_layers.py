# SPDX-License-Identifier: Apache-2.0
"""Layers that sleep for their times and are real beside that: parameters, tokens, transfers, collectives,
gradients.

On a machine with fewer cores than ranks, ranks that sleep do not compete: the schedule alone decides the time
of a step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from ostinato.nn import on_lane
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "emulated"))
from sleep import Sleep  # noqa: E402

VOCABULARY, WIDTH, LENGTH = 64, 16, 8


class Slow(nn.Module):
    """A layer that takes `seconds` beside its own work, and twice that backward."""

    def __init__(self, make, sizes: tuple, seconds: float):
        super().__init__()
        self.layer, self.seconds = make(*sizes), seconds

    def forward(self, x, *others):
        if x.is_floating_point():
            return self.layer(Sleep.apply(x, self.seconds, 2 * self.seconds), *others)
        return Sleep.apply(self.layer(x), self.seconds, 2 * self.seconds)


class SlowInParts(Slow):
    """One that may be cut: each of n ranks takes the n-th part of its time."""

    def sharded(self, shard):
        from ostinato.nn import sharded
        from ostinato.nn.layers import split_of

        made = Slow(nn.Identity, (), self.seconds / shard.count)
        made.layer = sharded(self.layer, shard, last=isinstance(self.layer, nn.Linear))
        made.split = {f"layer.{name}": dimension for name, dimension in split_of(made.layer).items()}
        return made


class Block(nn.Module):
    """Reads the layer before it; a decoder's reads the encoder's output as well."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, memory=None):
        return x + torch.tanh(self.mix(x if memory is None else x + memory))


class Sum(nn.Module):
    """Two branches become one. It has no weights: ranks that share it all add."""

    def forward(self, a, b):
        return a + b

    def sharded(self, shard):
        return Sum()


class Scale(nn.Module):
    """x times a weight: keeps x. `seconds` forward, as much for the gradient of x, as much for that of the
    weight: both halves of a split backward sleep. Of a model's first layer, whose x has no gradient, the
    second sleeps for both."""

    def __init__(self, width: int, seconds: float):
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.ones(width)), seconds

    def forward(self, x):
        weight = Sleep.apply(self.weight, 0.0, self.seconds if x.requires_grad else 2 * self.seconds)
        return Sleep.apply(x, self.seconds, self.seconds) * weight


@on_lane
class Exchange(nn.Module):
    """An all-to-all of experts: `seconds` in either direction, in which a rank can compute."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        return Sleep.apply(x, self.seconds, self.seconds)


def loss(logits, targets):
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
