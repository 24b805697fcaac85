# SPDX-License-Identifier: Apache-2.0
"""A layer of deepspeed.moe in parts: its two exchanges of tokens can run beside what the rank computes.

    moe = MoE(width, expert, num_experts=8, ep_size=2)
    chain = [Attention(), *moe_parts(moe), Joined()]     # gate | dispatch | experts | combine | sum

The first part takes `hidden`, or a tuple that begins with it; the last one returns (output, l_aux, *rest), with the
rest of that tuple, such as the input that the output is to be added to. `l_aux` has one element. What they compute is
what the layer computes, bit for bit, and the parameters are the layer's: gate in the first part, experts in the third.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .lanes import on_lane


def moe_parts(moe: Any) -> list[nn.Module]:
    """`moe`: a deepspeed.moe.layer.MoE. Tokens are exchanged within DeepSpeed's groups for its `ep_size`
    (examples/moe makes them). Raises ValueError for a layer with a residual MLP, with Tutel, or that drops no
    tokens: then the shapes of what is exchanged would change with every micro-batch."""
    inner = moe.deepspeed_moe
    for wrong, what in (
        (moe.use_residual, "use_residual=True"),
        (inner.use_tutel, "use_tutel=True"),
        (not inner.gate.drop_tokens, "drop_tokens=False"),
    ):
        if wrong:
            raise ValueError(f"moe_parts(): a layer with {what} cannot be cut into parts")
    group = moe.expert_group_name if moe.ep_size > 1 else ""
    dispatch, combine = Exchange(group), Exchange(group)
    return [Gate(inner.gate), dispatch, Experts(inner.experts, moe.ep_size), combine, Combined()]


class Gate(nn.Module):
    """hidden, *rest -> rows by expert and place, weights and slots of each token, l_aux, *rest. A slot is an expert and
    a place among its rows, or the one behind all where the expert has no place left."""

    def __init__(self, gate: nn.Module):
        super().__init__()
        self.gate = gate

    def forward(self, given):
        hidden, *rest = given if isinstance(given, tuple) else (given,)
        tokens = hidden.reshape(-1, hidden.shape[-1])
        l_aux, capacity, experts, chosen, places, weights, _ = self.gate(tokens, None, True)
        nowhere = experts * int(capacity)
        slots = torch.where(chosen >= 0, chosen.long() * int(capacity) + places.long(), nowhere)
        numbers = torch.arange(len(tokens), device=tokens.device).expand_as(slots)
        token_of = torch.full((nowhere + 1,), len(tokens), device=tokens.device)
        token_of.scatter_(0, slots.flatten(), numbers.flatten())
        rows = torch.cat([tokens, tokens.new_zeros(1, tokens.shape[-1])])[token_of[:-1]]
        by_choice = (len(slots), *hidden.shape[:-1])
        return (
            rows.view(experts, int(capacity), -1),
            weights.view(by_choice),
            slots.view(by_choice),
            l_aux.view(1),
            *rest,
        )


class AllToAll(torch.autograd.Function):
    """The backward of an exchange is an exchange."""

    @staticmethod
    def forward(context, sent, group):
        context.group = group
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent.contiguous(), group=group)
        return received

    @staticmethod
    def backward(context, gradient):
        return AllToAll.apply(gradient, context.group), None


@on_lane
class Exchange(nn.Module):
    """Rows of this rank for all experts -> rows of all ranks for its experts, and back."""

    def __init__(self, group: str):
        super().__init__()
        self.group = group  # DeepSpeed's name of it; "": each rank has all experts

    def forward(self, given):
        rows, *rest = given
        if not self.group:
            return given
        from deepspeed.utils import groups

        return AllToAll.apply(rows, groups._get_expert_parallel_group(self.group)), *rest


class Experts(nn.Module):
    """Those of this rank, for the rows of all `ranks`."""

    def __init__(self, experts: nn.Module, ranks: int):
        super().__init__()
        self.experts, self.ranks = experts, ranks

    def forward(self, given):
        rows, *rest = given
        by_rank = rows.reshape(self.ranks, -1, *rows.shape[1:])
        return self.experts(by_rank).reshape(len(rows), -1, rows.shape[-1]), *rest


class Combined(nn.Module):
    """What the experts have made of each token, weighted and summed, l_aux, *rest."""

    def forward(self, given):
        made, weights, slots, l_aux, *rest = given
        rows = torch.cat([made.flatten(0, 1), made.new_zeros(1, made.shape[-1])])
        return (rows[slots] * weights[..., None]).sum(0).to(made.dtype), l_aux, *rest
