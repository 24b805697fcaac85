# SPDX-License-Identifier: Apache-2.0
"""A small mixture of experts in parts, as a chain of layers: attention and gate, dispatch, experts, combine. Two
ranks, each with a pipeline of its own and half of the experts, exchange tokens by an all-to-all."""

import threading
from types import SimpleNamespace

import torch
import torch.distributed as dist
from ostinato.nn import on_lane
from torch import nn

WIDTH, EXPERTS, ROWS, MICRO_BATCHES, STEPS = 8, 4, 6, 5, 3
here = SimpleNamespace(group=None, threads=set())  # of this process


class AllToAll(torch.autograd.Function):
    """(experts, capacity, width): of all tokens of this rank, by expert, to those of all ranks, for its experts.
    The way back is the same exchange."""

    @staticmethod
    def forward(context, sent):
        return exchanged(sent)

    @staticmethod
    def backward(context, gradient):
        return exchanged(gradient)


def exchanged(sent):
    here.threads.add(threading.get_ident())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent.contiguous(), group=here.group)
    return received


class Gate(nn.Module):
    """Ends an attention: sends each row to the expert that it likes best, at most ROWS to each."""

    def __init__(self):
        super().__init__()
        self.mix, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS)

    def forward(self, rows):
        rows = rows + torch.tanh(self.mix(rows))
        weight, expert = torch.softmax(self.gate(rows), dim=-1).max(dim=-1)
        routed = rows.new_zeros(EXPERTS, ROWS, WIDTH)
        routed = routed.index_put((expert, torch.arange(len(rows))), rows)
        return routed, rows, weight, expert


@on_lane
class Dispatch(nn.Module):
    def forward(self, inputs):
        return AllToAll.apply(inputs[0]), *inputs[1:]


class Experts(nn.Module):
    """Those of this rank, for the rows of both."""

    def __init__(self):
        super().__init__()
        self.mine = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS // 2))

    def forward(self, inputs):
        by_rank = inputs[0].view(2, EXPERTS // 2, ROWS, WIDTH)
        made = [torch.relu(expert(by_rank[:, e])) for e, expert in enumerate(self.mine)]
        return torch.stack(made, dim=1).view(EXPERTS, ROWS, WIDTH), *inputs[1:]


@on_lane
class Combine(nn.Module):
    def forward(self, inputs):
        return AllToAll.apply(inputs[0]), *inputs[1:]


class Back(nn.Module):
    def forward(self, inputs):
        made, rows, weight, expert = inputs
        return rows + weight[:, None] * made[expert, torch.arange(len(rows))]


def chain(blocks: int = 2) -> list[nn.Module]:
    """The same weights on both ranks, but for the experts."""
    torch.manual_seed(3)
    layers = []
    for _ in range(blocks):
        layers += [Gate(), Dispatch(), Experts(), Combine(), Back()]
    torch.manual_seed(10 + dist.get_rank())
    for layer in layers:
        if isinstance(layer, Experts):
            for parameter in layer.parameters():
                nn.init.normal_(parameter, std=0.5)
    return layers


def loss(rows, targets):
    return (rows - targets).square().mean()


def batch(step: int):
    generator = torch.Generator().manual_seed(7 * step + dist.get_rank())
    return torch.randn(2, MICRO_BATCHES * ROWS, WIDTH, generator=generator)


def train(plan: str) -> dict:
    """Losses and gradients of some steps, and in how many threads tokens were exchanged."""
    from ostinato.torch import Pipeline, layers

    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    here.group, here.threads = dist.new_group([0, 1]), set()
    model = chain()
    pipe = Pipeline(plan, layers(model), loss_fn=loss, group=alone)
    losses, gradients = [], []
    for step in range(STEPS):
        losses.append(pipe.step(*batch(step)).item())
        gradients.append([p.grad.clone() for layer in model for p in layer.parameters()])
    main = threading.get_ident()
    return {"losses": losses, "gradients": gradients, "beside": main not in here.threads}
