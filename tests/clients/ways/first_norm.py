# SPDX-License-Identifier: Apache-2.0
"""bigscience's Megatron-DeepSpeed: the constructor of a tied embedding asks for its rank, and makes a norm on
the first stage only. The function before it takes longer than all layers, so a plan would like to have it
alone on a rank.
"""

import time

import torch
import torch.nn.functional as F
from common import SIZE, WIDTH, Block, done, initialize, made, rank
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

WORDS = 32


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH) if rank == 0 else None

    @property
    def weight(self):
        return self.words.weight

    def forward(self, tokens):
        return self.norm(self.words(tokens))


def to_float16(tokens):
    time.sleep(0.012)
    return tokens


def head(embedding, hidden):
    return F.linear(hidden, embedding.weight)


def loss(made, targets):
    return F.cross_entropy(made.view(-1, WORDS), targets.view(-1))


def data():
    generator = torch.Generator().manual_seed(5)
    while True:
        words = torch.randint(WORDS, (SIZE, 6), generator=generator)
        yield words, words


tied = {"tied_weight_attr": "weight"}
layers = [to_float16, TiedLayerSpec("embed", Embedding, **tied)]
layers += [LayerSpec(Block) for _ in range(5)]
layers += [TiedLayerSpec("embed", Embedding, forward_fn=head, **tied)]
engine, *_ = initialize(made(layers, loss_fn=loss))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
