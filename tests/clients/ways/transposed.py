# SPDX-License-Identifier: Apache-2.0
"""gpt-neox: a function between the layers changes the order of dimensions, so the gradient comes back
transposed. With --kind slice its gradient comes back with gaps, too."""

import torch
from common import LAYERS, WIDTH, Block, args, data, done, initialize, made
from deepspeed.pipe import LayerSpec


def turned(x):
    return x.transpose(0, 1).contiguous()


def sliced(x):
    return torch.cat((x, x), 1)[:, :WIDTH]


layers = [LayerSpec(Block, index) for index in range(LAYERS - 2)]
if args.kind == "slice":
    layers[-1] = sliced
engine = initialize(made([*layers, turned, torch.tanh]))[0]
batches = ((inputs, turned(targets)) for inputs, targets in data())
done([engine.train_batch(batches) for _ in range(3)], engine)
