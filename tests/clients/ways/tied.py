# SPDX-License-Identifier: Apache-2.0
"""An embedding that the head shares, and a function as a layer."""

import torch
import torch.nn.functional as F
from common import WIDTH, Block, done, initialize, made
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

WORDS = 32


def head(embedding, x):
    return F.linear(x, embedding.weight)


def loss(logits, words):
    return F.cross_entropy(logits.view(-1, WORDS), words.view(-1))


layers = [
    TiedLayerSpec("words", nn.Embedding, WORDS, WIDTH),
    *[LayerSpec(Block, index) for index in range(5)],
]
layers += [torch.tanh, TiedLayerSpec("words", nn.Embedding, WORDS, WIDTH, forward_fn=head)]
engine, *_ = initialize(made(layers, loss_fn=loss))


def words():
    generator = torch.Generator().manual_seed(5)
    while True:
        drawn = torch.randint(WORDS, (2, 5), generator=generator)
        yield drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


batches = words()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
