# SPDX-License-Identifier: Apache-2.0
"""Asks whoever starts it for something."""

import sys

from common import data, done, initialize, made

answer = sys.stdin.readline()
engine, *_ = initialize(made())
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(2)]
done(losses, engine, answer=answer)
