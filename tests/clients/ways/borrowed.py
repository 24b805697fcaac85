# SPDX-License-Identifier: Apache-2.0
"""Layers that the script has made before: as arguments of a LayerSpec, and as they are."""

from common import WIDTH, data, done, initialize, made
from deepspeed.pipe import LayerSpec
from torch import nn


class Wrapped(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.args = part, {"kept": True}

    def forward(self, x):
        return x + self.part(x).tanh()


parts = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
engine, *_ = initialize(made([LayerSpec(Wrapped, part) if index < 6 else part for index, part in enumerate(parts)]))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
