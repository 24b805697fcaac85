# SPDX-License-Identifier: Apache-2.0
"""Layers in the middle are frozen, and the script's optimizer has the others."""

import torch
from common import data, done, initialize, made

model = made()
for name, parameter in model.named_parameters():
    parameter.requires_grad_(int(name.split(".")[0]) in (0, 3, 7))
learning = [p for p in model.parameters() if p.requires_grad]
engine, *_ = initialize(model, optimizer=torch.optim.SGD(learning, lr=0.1))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
