# SPDX-License-Identifier: Apache-2.0
"""Two trainings in one process, as a search for hyper-parameters has them: the first is given up."""

import torch
from common import data, done, initialize, made

losses = []
for rate in (1e-1, 1e-2):
    torch.manual_seed(1)
    model = made()
    engine, *_ = initialize(model, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
    batches = data()
    losses += [engine.train_batch(batches).item() for _ in range(3)]
    if rate == 1e-1:
        engine.destroy()
done(losses, engine)
