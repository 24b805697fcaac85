# SPDX-License-Identifier: Apache-2.0
"""What hazards are made of: batches, a block, and the list that they are put into."""

import torch
from torch import nn
from torch.nn import functional

from ..model import Model


WIDTH, CLASSES, BATCH, LENGTH, VOCABULARY = 8, 4, 4, 5, 13
HAZARDS: dict[str, Model] = {}


def vectors(generator):
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(
        CLASSES, (BATCH,), generator=generator
    )


def sequences(generator):
    inputs = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    return inputs, torch.randint(CLASSES, (BATCH, LENGTH), generator=generator)


def tokens(generator):
    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def images(generator):
    return torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(
        CLASSES, (BATCH,), generator=generator
    )


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))


def hazard(name: str, batch=vectors, loss=cross_entropy, **more):
    """Puts the function that it decorates, which makes the layers, into HAZARDS."""

    def add(layers):
        HAZARDS[name] = Model(name, layers, batch, loss, **more)
        return layers

    return add


def spec(kind, *args, **kwargs):
    from deepspeed.pipe import LayerSpec

    return LayerSpec(kind, *args, **kwargs)


def stack(kind, *args, count: int = 7, classes: int = CLASSES, **kwargs) -> list:
    """`count` layers of a kind and a head."""
    return [*(spec(kind, *args, **kwargs) for _ in range(count)), spec(nn.Linear, WIDTH, classes)]


class Block(nn.Module):
    """x + tanh(linear(x)), what most hazards begin from."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))
