# SPDX-License-Identifier: Apache-2.0
"""Layers that ask something of autograd, of checkpoints or of a compiler."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .base import WIDTH, Block, hazard, sequences, spec, stack


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient


class Squared(Block):
    def forward(self, x):
        return x + Square.apply(torch.tanh(self.mix(x)))


class Lower(Block):
    """A part in bfloat16, a part without gradients."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            made = self.mix(x)
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1)
        return x + torch.tanh(made.float()) / scale


class Inner(Block):
    """Its forward asks autograd for a gradient, as energies and penalties do."""

    def forward(self, x):
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(torch.tanh(self.mix(start)).sum(), start, create_graph=True)
        return super().forward(x) + 0.1 * force


class Checkpointed(Block):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return x + self.cells(x)[0]


class Compiled(nn.Module):
    """Compiles a layer of its own. aot_eager: a graph without a compiler's seconds."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.compiled = torch.compile(self.block, backend="aot_eager")

    def forward(self, x):
        return self.compiled(x)


def compile_layers(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend="aot_eager")


def scaled(gradients, factor):
    """Of a hook around a backward; the first layer of a model has no gradient to hand on."""
    return tuple(None if gradient is None else gradient * factor for gradient in gradients)


class Hooked(Block):
    """Hooks that it registers itself."""

    def __init__(self):
        super().__init__()
        self.mix.register_forward_hook(lambda module, inputs, output: output * 0.5)
        self.mix.weight.register_hook(lambda gradient: gradient * 2)
        self.register_full_backward_hook(lambda module, given, taken: scaled(given, 0.9))


hazard("an autograd.Function")(lambda: stack(Squared))
hazard("autocast and no_grad")(lambda: stack(Lower))
hazard("autograd.grad in a forward")(lambda: stack(Inner))
hazard("checkpoint in a layer")(lambda: stack(Checkpointed, False))
hazard("re-entrant checkpoint in a layer")(lambda: [spec(Block), *stack(Checkpointed, True, count=6)])
hazard(
    "checkpointing of DeepSpeed's",
    pipeline={"activation_checkpoint_interval": 2},
    config={"pipeline": {"use_reentrant": False}},
)(lambda: stack(Block))
hazard("LSTM", batch=sequences)(lambda: stack(Recurrent))
hazard("a compiled part")(lambda: stack(Compiled))
hazard("compiled layers, by the script", between=compile_layers)(lambda: stack(Block))
hazard("hooks of its own")(lambda: stack(Hooked))
