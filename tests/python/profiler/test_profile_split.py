# SPDX-License-Identifier: Apache-2.0
"""The split backward gives the gradients of the whole one, bit for bit."""

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ostinato import _profiler
from ostinato.profile import Job, profile_layers


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


class Shared(nn.Module):
    """One weight in two places, one behind the other."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(torch.tanh(self.linear(x)))


class Scale(torch.autograd.Function):
    """Gives the gradients of its input and its weight in one."""

    backwards = 0

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        Scale.backwards += 1
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum()


class Scaled(nn.Module):
    """The Function's weight is also that of an operator of torch's."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return Scale.apply(torch.tanh(x), self.scale) + x * self.scale


@pytest.mark.parametrize("kind", [Residual, Aside, Attention, TwoOutputs, Shared, Scaled])
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

    halves = _profiler.BackwardHalves(outputs, [x])
    assert halves.can_split and halves.has_input_half and halves.has_weight_half
    [of_input] = halves.run_inputs(given)
    halves.cut()
    assert all(parameter.grad is None for parameter in module.parameters())
    halves.run_weights()
    split = [of_input, *(parameter.grad for parameter in module.parameters())]
    assert len(whole) == len(split)
    for one, other in zip(whole, split, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_a_function_runs_once_in_both_halves_together():
    module, x = Scaled(), torch.randn(2, 4, 8, requires_grad=True)
    halves = _profiler.BackwardHalves([module(x)], [x])
    before = Scale.backwards
    halves.run_inputs([torch.ones(2, 4, 8)])
    halves.cut()
    halves.run_weights()
    assert Scale.backwards == before + 1


def halves_of(layer, **options):
    """Repeats of the halves and of the whole, of a layer behind one that learns."""
    row = profile_layers(
        Job(layers=[nn.Linear(8, 8), layer], inputs=torch.randn(2, 8), repeats=1, **options)
    ).layers[1]
    return row.backward_input.repeats, row.backward_weight.repeats, row.backward.repeats


def test_halves_are_measured_where_the_executor_runs_two():
    assert halves_of(Shared()) == halves_of(Scaled()) == (1, 1, 1)
    assert halves_of(Shared(), checkpoint_interval=1) == (0, 0, 1)
    compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), backend="aot_eager")
    assert halves_of(compiled) == (0, 0, 1)


class Reentrant(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def test_a_checkpoint_of_the_layers_own_is_not_split():
    assert halves_of(Reentrant(8, 8)) == (0, 0, 1)
