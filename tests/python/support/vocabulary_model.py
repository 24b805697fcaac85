# SPDX-License-Identifier: Apache-2.0
"""A small model whose embedding, head, and a layer of the user's own can be sharded over ranks."""

import torch
from sharded_jobs import Experts
from torch import nn

from .models import BATCH, LENGTH, WIDTH, Block

VOCABULARY, LAYERS = 19, 8  # embedding, two blocks, one of the user's own, two blocks, norm, head


class Mixer(Experts):
    """The user's layer, as wide as the model: it says itself how it is cut."""

    def __init__(self):
        super().__init__(WIDTH)


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    block, norm = LayerSpec(Block), LayerSpec(nn.LayerNorm, WIDTH)
    first, last = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    made = [first, block, block, LayerSpec(Mixer), block, block, norm, last]
    for index, layer in options.changed:
        made[index] = layer()
    return made


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def micro_batches(seed: int):
    """Endless (tokens, the tokens after them in the vocabulary)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
        yield tokens, (tokens + 1) % VOCABULARY
