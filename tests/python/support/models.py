# SPDX-License-Identifier: Apache-2.0
"""A small model with what borders between stages have to carry: integers, tuples, plain functions, tied
layers."""

import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH, BATCH = 13, 8, 5, 2
LAYERS = 8


class Embed(nn.Module):
    """(batch, length) tokens -> (batch, length, width)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.weight = self.table.weight  # what tied layers share

    def forward(self, tokens):
        return self.table(tokens)


def unembed(embed: Embed, hidden):
    return hidden @ embed.weight.t()


class Block(nn.Module):
    """A residual block with buffers, one of them not in the state dictionary."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.rand(()))
        self.register_buffer("shift", torch.rand(WIDTH), persistent=False)

    def forward(self, hidden):
        # DeepSpeed leaves buffers in fp32.
        scale, shift = (self.scale.to(hidden.dtype), self.shift.to(hidden.dtype))
        return hidden + torch.tanh(self.mix(self.norm(hidden))) * scale + 0.1 * shift


class Split(nn.Module):
    """hidden -> (hidden, positions): a tuple with an integer tensor, which has no gradient."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return self.mix(hidden), torch.arange(hidden.size(1), device=hidden.device).expand(
            hidden.shape[:2]
        ).contiguous()


class Join(nn.Module):
    """(hidden, positions) -> hidden; in place on what it was given, as layers may be where nothing is
    recomputed."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.in_place = in_place
        self.table = nn.Embedding(LENGTH, WIDTH)

    def forward(self, pair):
        hidden, positions = pair
        hidden = hidden if self.in_place else hidden.clone()
        return hidden.add_(self.table(positions))


def double(hidden):
    return 2 * hidden


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def layers(tied: bool, in_place: bool) -> list:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    if tied:
        first = TiedLayerSpec("embed", Embed)
        last = TiedLayerSpec("embed", Embed, forward_fn=unembed)
    else:
        first, last = LayerSpec(Embed), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    middle = [
        LayerSpec(Block),
        LayerSpec(Split),
        LayerSpec(Join, in_place),
        double,
        LayerSpec(Block),
        LayerSpec(Block),
    ]
    return [first, *middle, last]


def layers_of(options) -> list:
    return layers(options.tied, in_place=not options.checkpoint_interval)


def micro_batches(seed: int):
    """Endless (tokens, targets)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]
