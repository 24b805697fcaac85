# SPDX-License-Identifier: Apache-2.0
"""Two models that train in turn in one process, as a generator and its critic do."""

from common import blocks, data, done, initialize, made

engines = [initialize(made(layers))[0] for layers in (blocks(), blocks()[2:])]
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(2) for engine in engines]
done(losses, engines[0], second={name: p.sum().item() for name, p in engines[1].module.named_parameters()})
