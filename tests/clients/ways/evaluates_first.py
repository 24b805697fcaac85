# SPDX-License-Identifier: Apache-2.0
"""An evaluation before the first step and after every second, with a loss of the script that writes down
figures."""

from common import BATCHES, data, done, initialize, made
from torch import nn

figures: list[float] = []


class Loss(nn.Module):
    def forward(self, outputs, targets):
        error = (outputs - targets).abs().mean()
        figures.append(error.item())
        return error


engine, *_ = initialize(made(loss_fn=Loss()))
batches, held_out, losses = data(), data(), []
for step in range(4):
    if step % 2 == 0:
        losses.append(engine.eval_batch(held_out).item())
    losses.append(engine.train_batch(batches).item())
    assert len(figures) in (0, BATCHES * len(losses))  # of the rank that computes the loss
    assert not figures or abs(sum(figures[-BATCHES:]) / BATCHES - losses[-1]) < 1e-5
losses.append(engine.eval_batch(held_out).item())
done(losses, engine)
