# SPDX-License-Identifier: Apache-2.0
"""What a script does to a model before and after deepspeed.initialize(), its loss and its optimizer."""

from zlib import crc32

import torch
from torch import nn
from torch.nn import functional

from .autograd import scaled
from .base import CLASSES, WIDTH, Block, hazard, stack
from .inside import Dropping, Normed
from .parameters import freeze_biases


# What a script does to the model before deepspeed.initialize()


def drop_nothing(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def slow_norm(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum, module.eps = 0.5, 0.1


def scale_gradients(model):
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * 0.3)


def halve_outputs(model):
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == WIDTH:
            module.register_forward_hook(lambda module, inputs, output: output * 0.5)
            module.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))


def halve_gradients(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.register_full_backward_hook(lambda module, given, taken: scaled(given, 0.5))


def replace_parts(model):
    """Other modules in the place of a layer's own, as quantisation and adapters do."""
    for module in model.modules():
        if isinstance(module, Dropping):
            module.drop = nn.Hardtanh(-0.5, 0.5)


def replace_forward(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.forward = lambda x, module=module: x + torch.sigmoid(module.mix(x))


def start_again(model):
    """The weights, as scripts initialise them; by name, so that it counts nowhere which rank has which."""
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(crc32(name.encode())))


def add_parameters(model):
    for module in model.modules():
        if isinstance(module, Block):
            nn.utils.parametrizations.weight_norm(module.mix)


def mark(model):
    """Attributes on parameters: the optimizer of `marked_groups` reads them."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.slow = True


def marked_groups(model):
    slow = [p for p in model.parameters() if hasattr(p, "slow")]
    return torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if not hasattr(p, "slow")]}, {"params": slow, "lr": 1e-4}],
        lr=0.01,
    )


hazard("dropout off, by the script", between=drop_nothing)(lambda: stack(Dropping))
hazard("BatchNorm's momentum, by the script", between=slow_norm)(lambda: stack(Normed))
hazard("hooks of gradients, by the script", between=scale_gradients)(lambda: stack(Block))
hazard("hooks of forwards, by the script", between=halve_outputs)(lambda: stack(Block))
hazard("hooks of backwards, by the script", between=halve_gradients)(lambda: stack(Block))
hazard("other parts, by the script", between=replace_parts)(lambda: stack(Dropping))
hazard("another forward, by the script", between=replace_forward)(lambda: stack(Block))
hazard("weights, by the script", between=start_again)(lambda: stack(Block))
hazard("parametrizations, by the script", between=add_parameters)(lambda: stack(Block))
hazard("marked parameters, two groups", between=mark, optimizer=marked_groups)(lambda: stack(Block))


# What a script does after deepspeed.initialize(), before the first step


def learn_slowly(engine):
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.001


hazard("learning rate, after the start", after=learn_slowly)(lambda: stack(Block))
hazard("weights, after the start", after=lambda engine: start_again(engine.module))(lambda: stack(Block))
hazard("dropout off, after the start", after=lambda engine: drop_nothing(engine.module))(
    lambda: stack(Dropping)
)
hazard("hooks of gradients, after the start", after=lambda engine: scale_gradients(engine.module))(
    lambda: stack(Block)
)
hazard("frozen biases, after the start", after=lambda engine: freeze_biases(engine.module))(
    lambda: stack(Block)
)


# The loss and the rest


class Weighted(nn.Module):
    """A loss with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.linspace(0.5, 1.5, CLASSES))

    def forward(self, logits, labels):
        return functional.cross_entropy(logits, labels, weight=self.weights)


def own_class(**arguments):
    """A script's own subclass, with its own list of layers inside."""
    from deepspeed.pipe import PipelineModule

    class Own(PipelineModule):
        def __init__(self, layers, scale=2.0, **more):
            self.scale = scale
            super().__init__(layers=[*layers[:3], lambda x: x * self.scale, *layers[3:]], **more)

    return Own(**arguments)


hazard("a loss that is a module", loss=Weighted())(lambda: stack(Block))
hazard("a subclass of PipelineModule", kind=own_class, more_layers=1)(lambda: stack(Block, count=6))
hazard("SGD, clipped", optimizer="SGD", config={"gradient_clipping": 0.1})(lambda: stack(Block))
