# SPDX-License-Identifier: Apache-2.0
"""An evaluation before the first step, and one after every second."""

from common import data, done, initialize, made

engine, *_ = initialize(made())
batches, held_out, losses = data(), data(), []
for step in range(4):
    if step % 2 == 0:
        losses.append(engine.eval_batch(held_out).item())
    losses.append(engine.train_batch(batches).item())
losses.append(engine.eval_batch(held_out).item())
done(losses, engine)
