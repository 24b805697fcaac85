# SPDX-License-Identifier: Apache-2.0
"""Layers whose messages are larger than what ranks of one host copy into shared memory: 320 KiB."""

import torch
from torch import nn

BATCH, WIDTH, BLOCKS = 80, 1024, 3


class Enter(nn.Linear):
    def forward(self, x):
        return super().forward(x.to(self.weight.dtype))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def layers() -> list:
    from deepspeed.pipe import LayerSpec

    return [
        LayerSpec(Enter, WIDTH, WIDTH),
        *(LayerSpec(Block, WIDTH) for _ in range(BLOCKS)),
        LayerSpec(nn.Linear, WIDTH, WIDTH),
    ]


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs.float(), labels)
