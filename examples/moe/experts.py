# SPDX-License-Identifier: Apache-2.0
"""A byte-level GPT with a mixture of experts, as a chain of parts: attention and gate | dispatch | experts | combine.

The experts of a layer are spread over the data-parallel replicas of its pipeline rank, which exchange their tokens
by all-to-alls (GShard, arXiv 2006.16668, section 3). The exchanges have no parameters, and their class is marked with
ostinato.nn.on_lane: a plan runs them beside what the rank computes for another micro-batch.
"""

import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec
from deepspeed.utils import groups
from model import Embedding, Head, attended  # of examples/gpt
from ostinato.nn.moe import Exchange
from torch import nn
from torch.nn import functional as F

CAPACITY = 1.25  # rows of an expert, of what an even share of the tokens would be


def joined(state):
    """Adds what the experts have made of each token, if they come before this layer. A token beyond the capacity of
    its expert got nothing."""
    if torch.is_tensor(state):
        return state
    made, x, weight, slot = state
    rows = torch.cat([made.flatten(0, 1), made.new_zeros(1, made.shape[-1])])
    return x + weight[..., None] * rows[slot]


class Attention(nn.Module):
    """What the layer before has made -> (rows by expert, x, weight of the expert, row of each token)."""

    def __init__(self, width: int, heads: int, experts: int):
        super().__init__()
        self.heads, self.experts = heads, experts
        self.attention_norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.gate = nn.Linear(width, experts, bias=False)

    def forward(self, state):
        x = joined(state)
        x = x + self.projection(attended(self.qkv(self.attention_norm(x)), self.heads))
        return self.route(self.gate_norm(x), x)

    def route(self, tokens, x):
        """Each token goes to the expert that the gate likes best, while that has room."""
        weight, expert = self.gate(tokens).softmax(dim=-1).max(dim=-1)
        capacity = int(CAPACITY * expert.numel() / self.experts)
        before = F.one_hot(expert.flatten(), self.experts).cumsum(dim=0)  # and including, of the same expert
        place = before.gather(1, expert.view(-1, 1)).view_as(expert) - 1
        nowhere = self.experts * capacity
        slot = torch.where(place < capacity, expert * capacity + place, nowhere)
        rows = tokens.new_zeros(nowhere + 1, tokens.shape[-1]).index_put((slot,), tokens)
        return rows[:-1].view(self.experts, capacity, -1), x, weight, slot


class Experts(nn.Module):
    """Those of this replica, for the rows of all replicas."""

    def __init__(self, width: int, experts: int, replicas: int, group: str, seed: int):
        super().__init__()
        mine = experts // replicas
        self.shape = replicas, mine
        first = mine * dist.get_rank(groups._get_expert_parallel_group(group))
        drawn = [torch.Generator().manual_seed(1000 * seed + first + expert) for expert in range(mine)]
        self.up, self.down = (
            nn.Parameter(torch.stack([torch.randn(*size, generator=g) for g in drawn]) * size[0] ** -0.5)
            for size in ((width, 4 * width), (4 * width, width))
        )
        # As deepspeed.moe marks them: no replica adds its gradient to another's.
        for parameter in self.parameters():
            parameter.allreduce, parameter.group_name = False, group

    def forward(self, state):
        rows, *rest = state
        capacity, width = rows.shape[1:]
        by_expert = rows.view(*self.shape, capacity, width).transpose(0, 1).flatten(1, 2)
        made = torch.bmm(F.gelu(torch.bmm(by_expert, self.up)), self.down)
        made = made.view(self.shape[1], self.shape[0], capacity, width).transpose(0, 1)
        return made.reshape(rows.shape), *rest


class LastHead(Head):
    """What the last experts have made -> logits (batch, time, vocabulary)."""

    def forward(self, state):
        return super().forward(joined(state))


def layers(
    depth: int, width: int, heads: int, context: int, experts: int, replicas: int, group: str
) -> list[LayerSpec]:
    """`group`: DeepSpeed's name of the groups of `replicas` ranks that exchange tokens."""
    made = [LayerSpec(Embedding, width, context)]
    for block in range(depth):
        made += [
            LayerSpec(Attention, width, heads, experts),
            LayerSpec(Exchange, group),
            LayerSpec(Experts, width, experts, replicas, group, block),
            LayerSpec(Exchange, group),
        ]
    return [*made, LayerSpec(LastHead, width)]
