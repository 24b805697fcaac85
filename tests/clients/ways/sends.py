# SPDX-License-Identifier: Apache-2.0
"""As talks_to_last, but with one target on its way at a time: the first stage's loader waits until the last
one's has read them."""

import torch.distributed as dist
from common import SIZE, WIDTH, data, done, initialize, made
from torch import empty

engine, *_ = initialize(made())
last = engine.grid.stage_to_global(engine.num_stages - 1)
between = dist.new_group([0, last])


def shared():
    sent = None
    for inputs, targets in data():
        if engine.is_first_stage():
            if sent is not None:
                sent.wait()
            sent = dist.isend(targets, last, between)
        else:
            dist.recv(targets := empty(SIZE, WIDTH), 0, between)
        yield (inputs if engine.is_first_stage() else targets), targets


batches = shared()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
