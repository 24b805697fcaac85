# SPDX-License-Identifier: Apache-2.0
"""A DataLoader with workers that stay, shuffled by the script's generator, and a second one that is set on
the engine."""

import torch
from common import SIZE, WIDTH, done, initialize, made
from deepspeed.utils import RepeatingLoader
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(3)
items = TensorDataset(
    torch.randn(24, WIDTH, generator=generator), torch.randn(24, WIDTH, generator=generator)
)
engine, *_ = initialize(made())
shuffled = DataLoader(items, SIZE, shuffle=True, num_workers=1, persistent_workers=True, generator=generator)
batches = iter(RepeatingLoader(shuffled))
losses = [engine.train_batch(batches).item() for _ in range(4)]
engine.set_dataloader(DataLoader(items, SIZE))
losses.append(engine.train_batch().item())
engine.set_batch_fn(lambda item: (item[0] * 2, item[1]))
losses.append(engine.train_batch().item())
done(losses, engine)
