# SPDX-License-Identifier: Apache-2.0
"""Layers that sleep for given times: real parameters, tensors, gradients and transfers, emulated compute.

On a machine with fewer cores than ranks, ranks that sleep do not compete, so the schedule alone decides the
time of a step. A layer's parameters are in proportion to its time, so that DeepSpeed's
`partition_method="parameters"` finds the best chain partition that it can.
"""

import torch
from deepspeed.pipe import LayerSpec
from sleep import Sleep
from torch import nn

# Relative forward cost of each layer: uneven, with a heavy first and last one (an embedding and a head, say).
COSTS = (7, 1, 2, 2, 3, 3, 1, 2, 4, 4, 2, 3, 1, 5, 3, 7)


class EmulatedLayer(nn.Module):
    """(batch, width) -> the same, in `cost * unit` seconds forward and twice that backward."""

    def __init__(self, width: int, cost: int, unit: float):
        super().__init__()
        self.seconds = cost * unit
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(cost))

    def forward(self, x):
        for linear in self.mix:
            x = x + 0.1 * torch.tanh(linear(x))
        return Sleep.apply(x, self.seconds, 2 * self.seconds)


def loss(output, target):
    return nn.functional.mse_loss(output, target)


def layers(width: int, unit: float) -> list[LayerSpec]:
    return [LayerSpec(EmulatedLayer, width, cost, unit) for cost in COSTS]
