# SPDX-License-Identifier: Apache-2.0
"""Dropout, activation checkpointing, and a generator that the script itself draws from between steps."""

import torch
from common import Block, blocks, data, done, initialize, made
from torch.nn import functional as F


class Dropped(Block):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.2, self.training)


engine, *_ = initialize(made(blocks(Dropped), activation_checkpoint_interval=2))
batches, losses = data(), []
for _ in range(3):
    losses.append(engine.train_batch(batches).item())
    losses.append(torch.rand(1).item())
done(losses, engine)
