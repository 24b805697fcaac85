# SPDX-License-Identifier: Apache-2.0
"""A PipelineModule of the script, which goes on after super().__init__(): it keeps layers, freezes some, and
counts parameters."""

from common import LAYERS, Block, blocks, data, done, initialize, made
from deepspeed.pipe import PipelineModule
from torch import nn


class Net(PipelineModule):
    def __init__(self, layers, frozen: int, **options):
        super().__init__(layers=layers, **options)
        self.blocks = [layer for layer in self.forward_funcs if isinstance(layer, Block)]
        self.scale = 0.5
        for block in self.blocks:
            block.linear.bias.stride = 1  # as gpt-neox marks its own
        for name, parameter in self.named_parameters():
            if int(name.split(".")[0]) % frozen == 0:
                parameter.requires_grad_(False)
        for block in self.blocks:
            nn.init.zeros_(block.linear.bias)
        self.count = sum(p.numel() for p in self.parameters() if p.requires_grad)


model = made(blocks(), Net, frozen=3)
engine, *_ = initialize(model, model_parameters=[p for p in model.parameters() if p.requires_grad])
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(3)]
norms = sum(block.linear.weight.norm().item() for block in model.blocks)
assert len(model.blocks) in range(1, LAYERS) and norms > 0
done(losses, engine, scale=engine.module.scale)
