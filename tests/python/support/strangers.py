# SPDX-License-Identifier: Apache-2.0
"""A chain of small layers, some of which are replaced by what people's models have in them. Options.change names it (CHANGES)."""

from collections import namedtuple

import torch
from torch import nn

LAYERS, WIDTH, BATCH = 8, 6, 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + torch.tanh(self.lin(hidden))


# ---- what layers hand on

Pair = namedtuple("Pair", "hidden mask")


class Listing(Plain):
    def forward(self, hidden):
        return [super().forward(hidden), hidden.detach()]


class Naming(Plain):
    def forward(self, hidden):
        return Pair(super().forward(hidden), hidden.detach())


class TakesTwo(Plain):
    def forward(self, pair):
        return super().forward(pair[0]) + pair[1] * (0.1 if isinstance(pair, list) or hasattr(pair, "mask") else 0.2)


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


class Shouting(Plain):
    def forward(self, hidden):
        return super().forward(hidden).as_subclass(Loud)


# By name: other layers by their index.
CHANGES: dict[str, dict[int, type[nn.Module]]] = {
    "": {},
    "list": {1: Listing, 2: TakesTwo},
    "named": {1: Naming, 2: TakesTwo},
    "attribute": {1: Marking, 2: Marked},
    "class": {1: Shouting},
    "attribute at DeepSpeed's border": {3: Marking, 4: Marked},
}


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    return [LayerSpec(CHANGES[options.change].get(layer, Plain)) for layer in range(LAYERS)]


loss = nn.functional.mse_loss


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)
