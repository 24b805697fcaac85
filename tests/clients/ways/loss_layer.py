# SPDX-License-Identifier: Apache-2.0
"""MiniGPT4Qwen, qlora-pipe-lite: no loss function. Targets go through all layers beside the hidden states, a
mask and a length, and the last layer returns the loss, under autocast; layers wrap modules of one model that
every rank has made; ranks have seeds of their own; an evaluation has fewer micro-batches than a step.
"""

import torch
import torch.nn.functional as F
from common import BATCHES, LAYERS, SIZE, WIDTH, done, initialize, made, rank
from deepspeed.pipe import LayerSpec
from torch import nn


class Begin(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.embed, self.drop = whole["embed"], nn.Dropout(0.1)

    def forward(self, given):
        words, targets = given
        hidden = self.drop(self.embed(words))
        mask = (words > 2).to(hidden.dtype).requires_grad_()
        return hidden, mask, targets, torch.tensor(hidden.shape)


class Step(nn.Module):
    def __init__(self, whole, index):
        super().__init__()
        self.linear = whole["blocks"][index]

    def forward(self, given):
        hidden, mask, targets, shape = given
        return hidden + torch.tanh(self.linear(hidden)) * mask[..., None], mask, targets, shape


class End(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.head = whole["head"]

    def forward(self, given):
        hidden, _, targets, shape = given
        return F.cross_entropy(self.head(hidden.view(shape.tolist())).flatten(0, 1), targets.flatten())


def data():
    generator = torch.Generator().manual_seed(7)
    while True:
        words = torch.randint(32, (SIZE, 6), generator=generator)
        yield (words, words), words


blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS - 2))
whole = nn.ModuleDict({"embed": nn.Embedding(32, WIDTH), "blocks": blocks, "head": nn.Linear(WIDTH, 32)})
torch.manual_seed(42 + rank)
specs = [LayerSpec(Step, whole=whole, index=index) for index in range(LAYERS - 2)]
engine, *_ = initialize(made([LayerSpec(Begin, whole), *specs, LayerSpec(End, whole)], loss_fn=None))
batches, losses = data(), []
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        losses.append(engine.train_batch(batches).item())
    losses.append(engine.eval_batch(batches, num_micro_batches=BATCHES // 2).item())
done(losses, engine)
