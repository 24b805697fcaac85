# SPDX-License-Identifier: Apache-2.0
"""CoLLiE, a fork of diffusion-pipe: gives each layer the weights of its number, which is its place in forward_funcs
after the rank's first layer."""

import torch
from common import data, done, initialize, made

model = made()
for place, layer in enumerate(model.forward_funcs):
    generator = torch.Generator().manual_seed(int(place + model._local_start))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
engine, *_ = initialize(model)
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
