# SPDX-License-Identifier: Apache-2.0
"""gpt-neox: a function between the layers changes the order of dimensions, so the gradient comes back
transposed."""

import torch
from common import LAYERS, Block, data, done, initialize, made
from deepspeed.pipe import LayerSpec


def turned(x):
    return x.transpose(0, 1).contiguous()


layers = [LayerSpec(Block, index) for index in range(LAYERS - 2)]
engine = initialize(made([*layers, turned, torch.tanh]))[0]
batches = ((inputs, turned(targets)) for inputs, targets in data())
done([engine.train_batch(batches) for _ in range(3)], engine)
