# SPDX-License-Identifier: Apache-2.0
"""What Megatron's layers do: keep the script's arguments, mark parameters as slices, hand (hidden, mask) from
one to the next, tie one weight of an embedding that has more.
"""

import torch
import torch.nn.functional as F
from common import SIZE, WIDTH, args, done, initialize, made
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

WORDS, LENGTH = 32, 6


class EmbeddingPipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.args = args
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    @property
    def word_embeddings_weight(self):
        return self.words.weight

    def forward(self, given):
        tokens, mask = given
        return self.words(tokens) + self.positions(torch.arange(LENGTH)), mask


class ParallelTransformerLayerPipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.args, self.activation = args, torch.tanh
        self.linear = nn.Linear(WIDTH, WIDTH)
        for parameter in self.linear.parameters():
            parameter.model_parallel = True
        self.linear.bias.stride = 1

    def forward(self, given):
        hidden, mask = given
        return hidden + self.activation(self.linear(hidden.masked_fill(mask[..., None], 0.0))), mask


def head(embedding, hidden):
    return F.linear(hidden, embedding.word_embeddings_weight)


def loss(made, targets):
    return F.cross_entropy(made.view(-1, WORDS), targets.view(-1))


def tied(**more):
    return TiedLayerSpec("embed", EmbeddingPipe, tied_weight_attr="word_embeddings_weight", **more)


def data():
    generator = torch.Generator().manual_seed(5)
    while True:
        text = torch.randint(0, WORDS, (SIZE, LENGTH + 1), generator=generator)
        yield (text[:, :-1].contiguous(), text[:, :-1] < 4), text[:, 1:].contiguous()


layers = [
    tied(),
    *(LayerSpec(ParallelTransformerLayerPipe) for _ in range(5)),
    lambda given: given[0],
    tied(forward_fn=head),
]
engine, *_ = initialize(made(layers, loss_fn=loss))
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
done(losses, engine)
