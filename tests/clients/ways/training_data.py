# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed makes the loader of a dataset that the script hands over, from what the dataset draws."""

import torch
from common import WIDTH, done, initialize, made
from torch.utils.data import Dataset


class Drawn(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(WIDTH) + index, torch.randn(WIDTH)


model = made()
engine, _, loader, scheduler = initialize(model, model_parameters=model.parameters(), training_data=Drawn())
losses = [engine.train_batch().item() for _ in range(4)]
done(losses, engine, made=loader is not None)
