# SPDX-License-Identifier: Apache-2.0
"""train_batch is held before the first step, wrapped by a timer, and put on the engine."""

import functools
import time

from common import data, done, initialize, made

engine, *_ = initialize(made())
seconds = []


def timed(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        begin = time.perf_counter()
        loss = function(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)
        return loss

    return run


held = engine.train_batch
engine.train_batch = timed(engine.train_batch)
batches = data()
losses = [(held if step == 3 else engine.train_batch)(data_iter=batches).item() for step in range(4)]
done(losses, engine, steps=engine.global_steps, timed=len(seconds))
