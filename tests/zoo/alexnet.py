# SPDX-License-Identifier: Apache-2.0
"""AlexNet as DeepSpeedExamples trains it (training/pipeline_parallelism): the layers of torchvision's model
in one list, the loss a module. Written out here, and with fewer channels: torchvision's wheel needs torch's
CUDA libraries to be imported.
"""

from itertools import pairwise

import torch
from torch import nn

from .model import Model

CLASSES, BATCH, SIZE = 10, 2, 32


def layers(width: int = 8) -> list:
    """Features, pooling, flattening and classifier, module by module."""
    channels = [3, width, 3 * width, 6 * width, 4 * width, 4 * width]
    pooled = {0, 1, 4}
    made: list = []
    for number, (before, after) in enumerate(pairwise(channels)):
        made += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True)]
        made += [nn.MaxPool2d(2)] if number in pooled else []
    made += [nn.AdaptiveAvgPool2d((2, 2)), lambda x: torch.flatten(x, 1)]
    made += [nn.Dropout(), nn.Linear(16 * width, 8 * width), nn.ReLU(inplace=True)]
    return [
        *made,
        nn.Dropout(),
        nn.Linear(8 * width, 8 * width),
        nn.ReLU(inplace=True),
        nn.Linear(8 * width, CLASSES),
    ]


def batch(generator):
    return torch.randn(BATCH, 3, SIZE, SIZE, generator=generator), torch.randint(
        CLASSES, (BATCH,), generator=generator
    )


ALEXNET = Model("AlexNet", layers, batch, nn.CrossEntropyLoss(), optimizer="SGD")
