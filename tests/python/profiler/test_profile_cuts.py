# SPDX-License-Identifier: Apache-2.0
"""Memory of stages: whatever the layers and wherever the cuts, the rows add up to what the stage takes as a
whole."""

import functools
import random

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from ostinato.profile import Job
from ostinato.profile.model.build import Builder, build_chain
from ostinato.profile.measure.check import predict
from ostinato.profile.measure.footprint import footprint
from ostinato.profile.measure.kept import Memory
from ostinato.profile.measure.rows import layer_rows
from ostinato.profile.measure.samples import Sample, Samples, counted_memory
from ostinato.profile.run import cost_of
from ostinato.profile.settings import read_settings
from ostinato.profile.model.stage import build_stage, whole_of

BATCH, WIDTH, TIMES = 32, 48, 8
SMALL = 256  # bytes: a loss, a number
WITHIN = 0.03


class Call(nn.Module):
    """A function as a layer of its own name."""

    def __init__(self, name, function):
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x):
        return self.function(x)

    def __repr__(self):
        return self.name


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Twice(nn.Module):
    """One weight in two places, and a buffer that each forward changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(torch.tanh(self.linear(x)))


class TopHalf(torch.autograd.Function):
    """A function of its own, with an output that has no gradient, and arguments that get none."""

    @staticmethod
    def forward(ctx, x, scale):
        above = x > 0
        ctx.mark_non_differentiable(above)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(above)
        return x * above * scale, above

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _of_above):
        return gradient * ctx.saved_tensors[0], None


def hooked(layer):
    layer.register_forward_hook(lambda _module, _inputs, output: output * 2)
    layer.register_full_backward_hook(
        lambda _module, gradients, _of_outputs: tuple(None if g is None else g / 2 for g in gradients)
    )
    return layer


def thaws(layer):
    """Learns from its first forward on."""
    layer.requires_grad_(False)
    layer.register_forward_pre_hook(lambda module, _inputs: module.requires_grad_(True) and None)
    return layer


def frozen(layer):
    return layer.requires_grad_(False)


def both(layer):
    return Call("both", lambda pair: (layer(pair[0]), pair[1]))


KIT = {
    "linear": lambda: [nn.Linear(WIDTH, WIDTH)],
    "wide": lambda: [nn.Linear(WIDTH, 6 * WIDTH), nn.GELU(), nn.Linear(6 * WIDTH, WIDTH)],
    "tanh": lambda: [nn.Tanh()],
    "in place": lambda: [nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)],
    "norm": lambda: [nn.LayerNorm(WIDTH)],
    "dropout": lambda: [nn.Dropout(0.5)],
    "expand": lambda: [Call("up", lambda x: x[:, None].expand(-1, TIMES, -1)), nn.Tanh(), Call("mean", lambda x: x.mean(1))],
    "views": lambda: [nn.Unflatten(1, (4, WIDTH // 4)), Call("transpose", lambda x: x.transpose(1, 2)), nn.Tanh(), nn.Flatten()],
    "identity": lambda: [nn.Identity()],
    "residual": lambda: [Residual()],
    "pair": lambda: [Call("fork", lambda x: (x.tanh(), x)), both(nn.Linear(WIDTH, WIDTH)), both(nn.Sigmoid()), Call("join", lambda pair: pair[0] * pair[1])],
    "frozen": lambda: [frozen(nn.Linear(WIDTH, WIDTH))],
    "thaws": lambda: [thaws(nn.Linear(WIDTH, WIDTH))],
    "twice": lambda: [Twice()],
    "batch norm": lambda: [nn.BatchNorm1d(WIDTH)],
    "function": lambda: [Call("top half", lambda x: TopHalf.apply(x, 2.0)), Call("first", lambda pair: pair[0])],
    "hooked": lambda: [hooked(nn.Linear(WIDTH, WIDTH))],
    "weight norm": lambda: [weight_norm(nn.Linear(WIDTH, WIDTH))],
    "checkpoint": lambda: [Call("checkpoint", functools.partial(checkpoint, Residual(), use_reentrant=False))],
    "works on its input": lambda: [nn.Linear(WIDTH, WIDTH), Call("mul_", lambda x: x.mul_(2))],
    "part of its input": lambda: [Call("slice", lambda x: (x[:, : WIDTH // 2], x)), Call("second", lambda pair: pair[1])],
    "no_grad": lambda: [Call("scaled", lambda x: x * torch.no_grad()(torch.sum)(x))],
}  # fmt: skip


def drawn(seed):
    """Some parts of the kit in a row, often behind a frozen or parameterless front."""
    draw = random.Random(seed)
    front = draw.choice([[], ["frozen"], ["frozen", "tanh", "frozen"], ["expand"], ["views", "frozen"]])
    names = front + draw.choices(list(KIT), k=3)
    return [layer for name in names for layer in KIT[name]()]


def rows_of(job, chain):
    """The profile's rows, without times."""
    sample = Sample(0, 0, 0)
    settings = read_settings(job.config, job.optimizer)
    once = Samples([sample], [sample], [sample], [sample])
    footprints = {layer.index: footprint(layer) for layer in chain.layers}
    costs = {layer.index: cost_of(layer, once, footprints[layer.index], settings) for layer in chain.layers}
    return layer_rows(chain, costs, Memory(chain), footprints)


@pytest.mark.parametrize("seed", range(10))
def test_rows_add_up_at_every_cut(seed):
    torch.manual_seed(seed)
    layers = drawn(seed)
    inputs, labels = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    job = Job(
        layers=layers, inputs=inputs, labels=labels, loss_fn=nn.functional.mse_loss if seed % 2 else None
    )
    settings = read_settings(job.config, job.optimizer)
    with torch.enable_grad(), counted_memory(job.device):
        chain = build_chain(job, settings)
        rows = rows_of(job, chain)
        for first in range(len(layers)):
            for last in range(first + 1, len(layers) + 1):
                stage = whole_of(
                    job, chain, build_stage(job, chain, Builder(settings, job.device), first, last)
                )
                measured, said = footprint(stage), predict(rows[first:last])
                where = f"layers {layers[first:last]} of {layers}"
                assert said.kept == pytest.approx(measured.kept, rel=WITHIN, abs=SMALL), where
                lowest = measured.kept + measured.workspace
                # A stage's input counts to the end.
                highest = max(measured.forward_peak, measured.kept + measured.backward_beside)
                peak = said.kept + said.workspace
                assert (1 - WITHIN) * lowest - SMALL <= peak <= (1 + WITHIN) * highest + SMALL, where
