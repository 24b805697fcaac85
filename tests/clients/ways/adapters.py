# SPDX-License-Identifier: Apache-2.0
"""Adapters and weight_norm are put on layers between the model and the engine; what they adapt is frozen.
GemmaLongText and qlora-pipe-lite (--kind drawn): each rank draws its layers' adapters without a seed of the
layer, and drops random elements afterwards.
"""

import torch
from common import WIDTH, Block, args, data, done, initialize, made
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, seed: int):
        super().__init__()
        self.base = base.requires_grad_(False)
        drawn = args.kind == "drawn"
        generator = None if drawn else torch.Generator().manual_seed(seed)
        self.down = nn.Parameter(torch.randn(2, WIDTH, generator=generator) * 0.1)
        self.up, self.drop = nn.Parameter(torch.zeros(WIDTH, 2)), nn.Dropout(0.25 * drawn)

    def forward(self, x):
        return self.base(x) + self.drop(x) @ self.down.T @ self.up.T


model = made()
for name, module in list(model.named_children()):
    if isinstance(module, Block):
        if int(name) % 2 == 0:
            module.linear = Adapted(module.linear, int(name))
        else:
            weight_norm(module.linear)
learning = [p for p in model.parameters() if p.requires_grad]
engine, *_ = initialize(model, model_parameters=learning)
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
