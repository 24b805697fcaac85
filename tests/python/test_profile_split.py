"""The split backward gives the gradients of the whole one, bit for bit."""

import pytest
import torch
from torch import nn

from ostinato.profile import Job, profile_layers
from ostinato.profile.split import input_half, parameter_groups, weight_half


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.two(torch.tanh(self.one(self.norm(x))))


class Aside(nn.Module):
    """A parameter that meets the input late, through operators of its own, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * torch.exp(self.scale * 2)


class Attention(nn.Module):
    """Several results of one node, all on the way to the input."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


class TwoOutputs(nn.Module):
    """The second output does not depend on the input."""

    def __init__(self):
        super().__init__()
        self.linear, self.bias = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.linear(x), self.bias * 3


@pytest.mark.parametrize("kind", [Residual, Aside, Attention, TwoOutputs])
def test_split_equals_whole(kind):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(2, 4, 8, requires_grad=True)
    outputs = module(x)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    given = [torch.randn_like(output) for output in outputs]
    torch.autograd.backward(outputs, given, retain_graph=True)
    whole = [x.grad, *(parameter.grad for parameter in module.parameters())]
    for parameter in module.parameters():
        parameter.grad = None

    groups = parameter_groups(outputs, [x], list(module.parameters()))
    (of_input,), arrived = input_half(outputs, given, [x], groups)
    assert all(parameter.grad is None for parameter in module.parameters())
    weight_half(groups, arrived)
    split = [of_input, *(parameter.grad for parameter in module.parameters())]
    assert len(whole) == len(split)
    for one, other in zip(whole, split, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


class Shared(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(torch.tanh(self.linear(x)))


def test_a_weight_that_is_used_twice_is_not_split():
    module, x = Shared(), torch.randn(2, 8, requires_grad=True)
    assert parameter_groups([module(x)], [x], list(module.parameters())) is None
    rows = profile_layers(Job(layers=[nn.Linear(8, 8), module], inputs=torch.randn(2, 8), repeats=1)).layers
    assert rows[1].backward_input.repeats == rows[1].backward_weight.repeats == 0 and rows[1].backward.repeats == 1
