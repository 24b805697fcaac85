# SPDX-License-Identifier: Apache-2.0
"""Parameters that are frozen, unused, shared or tied."""

import torch
from torch import nn
from torch.nn import functional

from .base import CLASSES, VOCABULARY, WIDTH, Block, hazard, sequences, spec, stack, tokens


class Frozen(Block):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Adapted(nn.Module):
    """LoRA: a frozen layer and two thin ones beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


class Unused(Block):
    """A parameter that no forward reads, and one that only some read."""

    def __init__(self):
        super().__init__()
        self.never, self.rarely = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return super().forward(x) * (self.rarely if float(x.detach().sum()) > 0 else 1)


class Twice(Block):
    """Uses its weight twice."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / 4)

    def forward(self, x):
        return functional.embedding(x, self.weight)


def scores(head, x):
    return x @ head.weight.t()


@hazard("frozen front")
def _frozen():
    return [*(spec(Frozen) for _ in range(3)), *stack(Block, count=4)]


def freeze_front(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(int(name.split(".")[0]) > 2)


def freeze_biases(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))


hazard("frozen front, by the script", between=freeze_front)(lambda: stack(Block))
hazard("frozen biases, by the script", between=freeze_biases)(lambda: stack(Block))
hazard("adapters")(lambda: stack(Adapted))
hazard("unused parameters")(lambda: stack(Unused))
hazard("a weight used twice")(lambda: stack(Twice))


@hazard("tied embedding", batch=tokens)
def _tied():
    from deepspeed.pipe import TiedLayerSpec

    first = TiedLayerSpec("embedding", Head)
    return [first, *(spec(Block) for _ in range(6)), TiedLayerSpec("embedding", Head, forward_fn=scores)]


@hazard("one module at several places")
def _shared():
    shared = nn.Linear(WIDTH, WIDTH)
    return [Block(), shared, Block(), shared, Block(), shared, Block(), nn.Linear(WIDTH, CLASSES)]


@hazard("modules that are built", batch=sequences)
def _built():
    return [
        *(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True) for _ in range(5)),
        nn.Linear(WIDTH, CLASSES),
    ]


@hazard("bf16, ZeRO-1", batch=tokens, config={"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}})
@hazard("embedding and head to shard", batch=tokens, shardable=True)
def _ends():
    return [
        spec(nn.Embedding, VOCABULARY + 3, WIDTH),
        *(spec(Block) for _ in range(6)),
        spec(nn.Linear, WIDTH, VOCABULARY + 3),
    ]
