# SPDX-License-Identifier: Apache-2.0
"""AlexNet of the zoo with the channels of the paper, on 16 images of 32 x 32."""

import torch
from torch import nn
from zoo import alexnet

WIDTH, BATCH, SIZE = 64, 16, 32


def layers() -> list:
    return alexnet.layers(WIDTH)


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    return images, torch.randint(alexnet.CLASSES, (BATCH,), generator=generator)


loss = nn.CrossEntropyLoss()
