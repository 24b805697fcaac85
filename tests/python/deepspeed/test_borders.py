# SPDX-License-Identifier: Apache-2.0
"""Tensors and gradients at borders of DeepSpeed's own partition that lie within a stage of the plan."""

from contextlib import nullcontext

import torch
from ostinato.buffers import as_bytes
from ostinato.profile.model.outputs import of_outputs, stays, stripped
from ostinato.deepspeed.stages.borders import cross_as_in_1f1b, evaluation
from torch import nn


def turned(x):
    return x.t().contiguous()


def strides_behind(layers: list, watched: int, parts: list[int]) -> tuple[int, ...]:
    """How the gradient of the output of layer `watched` lies in memory."""
    cross_as_in_1f1b(parts, dict(enumerate(layers)))
    seen = []
    x = torch.randn(4, 6)
    for index, layer in enumerate(layers):
        x = layer(x)
        if index == watched:
            x.register_hook(lambda gradient: seen.append(gradient.stride()))
    x.square().sum().backward()
    return seen[0]


def test_gradients_are_contiguous_where_deepspeed_cuts():
    for cut in ([0, 1, 3], [0, 2, 3]):
        # Layer 1 gives layer 0 a transposed gradient.
        found = strides_behind([nn.Linear(6, 6), turned, nn.Tanh()], 0, cut)
        assert found == ((6, 1) if cut[1] == 1 else (1, 4))
    # Where both are functions, nothing can be said of either.
    assert strides_behind([torch.sin, nn.Linear(6, 6), torch.tanh, turned], 2, [0, 3, 4]) == (1, 4)


def test_where_deepspeed_cuts_only_what_it_would_lose_may_be_cut():
    marked = torch.zeros(1)
    marked.mark = 1
    staying = {0: stays({"h": torch.zeros(1)}), 1: stays(torch.zeros(1)), 2: stays(marked)}
    assert [one.layers for one in of_outputs(staying, [4])] == [(0, 1), (2, 3)]
    assert [one.layers for one in of_outputs(staying, [1, 1, 1, 1])] == [(0, 1)]


def test_a_module_that_two_layers_use_is_left_alone():
    """It would lay out gradients at the other layer, too."""
    twice = nn.Linear(6, 6)
    cross_as_in_1f1b([0, 1, 2], {0: twice, 1: twice})
    assert not twice._forward_hooks and not twice._forward_pre_hooks


def test_nothing_requires_a_gradient_behind_a_cut_in_an_evaluation():
    seen = []

    class Asks(nn.Identity):
        def forward(self, x):
            seen.append(x.requires_grad)
            return x.detach().requires_grad_()

    for expected in (True, False):
        layers = Asks(), Asks()
        cross_as_in_1f1b([0, 1, 2], dict(enumerate(layers)))
        with (
            torch.no_grad(),
            nullcontext() if expected else evaluation(),
        ):  # a re-entrant checkpoint: the first
            layers[1](layers[0](torch.zeros(2)))
        assert seen[-1] is expected


def test_a_parameter_crosses_whatever_zero_has_set_on_it():
    parameter, tensor = nn.Parameter(torch.zeros(1)), torch.zeros(1)
    for crossing in parameter, tensor:
        crossing.grad_accum = None
    assert stripped(parameter) == "" and stripped(tensor) == 'tensors with the attribute "grad_accum"'


def test_tensors_as_bytes():
    conjugate = torch.tensor([1 + 2j]).conj()
    for tensor in conjugate, torch.ones(()).expand(1), torch.ones(4, 3).t():
        assert torch.equal(as_bytes(tensor).view(tensor.dtype), tensor.reshape(-1))
