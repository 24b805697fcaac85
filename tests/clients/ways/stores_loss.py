# SPDX-License-Identifier: Apache-2.0
"""Megatron-DeepSpeed with experts: a function among the layers stores an auxiliary loss on the model, and the loss
function adds it.
"""

import torch.nn.functional as F
from common import blocks, data, done, initialize, made
from deepspeed.pipe import PipelineModule


class Storing(PipelineModule):
    def __init__(self, layers, loss_fn, **more):
        self.extra = None
        super().__init__([*layers[:5], self.store, *layers[6:]], loss_fn=self.loss, **more)

    def store(self, hidden):
        self.extra = 0.01 * hidden.square().mean()
        return hidden

    def loss(self, hidden, targets):
        return F.mse_loss(hidden, targets) + self.extra


engine, *_ = initialize(made(blocks(), Storing))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
