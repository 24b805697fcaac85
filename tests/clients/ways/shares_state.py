# SPDX-License-Identifier: Apache-2.0
"""Layers that count together how often they have run, where no reader of code would look: --kind says where.
Against the contract."""

import contextvars
import itertools
import logging
import os
import sys
import types

import torch
from common import Block, args, blocks, data, done, initialize, made

utils = sys.modules["utils"] = types.ModuleType("utils")  # stands for a module that the script imports
utils.count = 0
counter = itertools.count(1)
variable = contextvars.ContextVar("count", default=0)
log = logging.getLogger("counts")
log.count = total = 0


def counted() -> int:
    global total
    match args.kind:
        case "module":
            utils.count += 1
            return utils.count
        case "environment":
            os.environ["COUNT"] = str(int(os.environ.get("COUNT", "0")) + 1)
            return int(os.environ["COUNT"])
        case "iterator":
            return next(counter)
        case "context":
            variable.set(variable.get() + 1)
            return variable.get()
        case "logger":
            log.count += 1
            return log.count
        case "global":
            total += 1
            return total
    return 0


class Counting(Block):
    def forward(self, x):
        return torch.tanh(self.linear(x)) + x * (1 + 0.001 * counted())


engine, *_ = initialize(made(blocks(Counting)))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
