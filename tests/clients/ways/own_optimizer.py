# SPDX-License-Identifier: Apache-2.0
"""An optimizer of the script, with groups by name, and a scheduler that is set on the engine."""

import torch
from common import data, done, initialize, made

model = made()
decayed = [p for name, p in model.named_parameters() if not name.endswith("bias")]
rest = [p for name, p in model.named_parameters() if name.endswith("bias")]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2
)
engine, optimizer, *_ = initialize(model, optimizer=optimizer)
engine.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(4)]
done(losses, engine, rates=engine.get_lr(), groups=len(optimizer.param_groups))
