# SPDX-License-Identifier: Apache-2.0
"""A small model with branches that meet, and a skip edge, for ostinato.deepspeed.graph()."""

import torch
from torch import nn

from .models import BATCH, LENGTH, VOCABULARY, WIDTH
from .models import loss as loss

LAYERS, INPUTS = 8, ("tokens", "pixels")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.norm(x)))


class Join(nn.Module):
    """Two branches, and the first one's beginning once more."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, text, image, skipped):
        return self.mix(torch.cat([text, image], dim=-1)) + 0.5 * skipped


def unembed(embedding: nn.Embedding, hidden):
    return hidden @ embedding.weight.t()


def described(tied: bool = False) -> dict:
    """`tied`: both branches and the head share one table."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    embed = LayerSpec(nn.Embedding, VOCABULARY, WIDTH)
    block = LayerSpec(Block)
    head = LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    if tied:
        embed = TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH)
        head = TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH, forward_fn=unembed)
    return {
        "text": (embed, "tokens"),
        "text1": (block, "text"),
        "text2": (block, "text1"),
        "image": (embed, "pixels"),
        "image1": (block, "image"),
        "join": (LayerSpec(Join), "text2", "image1", "text"),
        "after": (block, "join"),
        "head": (head, "after"),
    }


def layers_of(options) -> list:
    from ostinato.deepspeed import graph

    return graph(described(options.tied), INPUTS)


def micro_batches(seed: int):
    """Endless ((tokens, pixels), targets)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (3, BATCH, LENGTH), generator=generator)
        yield (tokens[0], tokens[1]), (tokens[0] + tokens[1]) % VOCABULARY
