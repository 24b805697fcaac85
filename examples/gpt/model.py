# SPDX-License-Identifier: Apache-2.0
"""A byte-level GPT as a list of DeepSpeed LayerSpecs."""

import torch
from deepspeed.pipe import LayerSpec
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256  # one token a byte


class Embedding(nn.Module):
    """Bytes (batch, time) int64 -> (batch, time, width)."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


def attended(qkv, heads: int):
    """Queries, keys and values of each position, (batch, time, 3 width) -> (batch, time, width)."""
    batch, time, width = *qkv.shape[:2], qkv.shape[2] // 3
    q, k, v = (part.view(batch, time, heads, width // heads).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, time, width)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, (batch, time, width) -> the same."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.projection(attended(self.qkv(self.attention_norm(x)), self.heads))
        return x + self.feed(self.feed_norm(x))


class Head(nn.Module):
    """(batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        return self.logits(self.norm(x))


def loss(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def layers(depth: int, width: int, heads: int, context: int) -> list[LayerSpec]:
    return [
        LayerSpec(Embedding, width, context),
        *(LayerSpec(Block, width, heads) for _ in range(depth)),
        LayerSpec(Head, width),
    ]
