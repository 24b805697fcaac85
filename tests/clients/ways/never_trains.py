# SPDX-License-Identifier: Apache-2.0
"""Evaluates only."""

from common import data, done, initialize, made

engine, *_ = initialize(made())
batches = data()
losses = [engine.eval_batch(batches).item() for _ in range(3)]
done(losses, engine)
