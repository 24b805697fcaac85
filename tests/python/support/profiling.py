# SPDX-License-Identifier: Apache-2.0
"""Profiles of a few layers, as short as they can be."""

import torch
from ostinato.profile import Job, profile_layers
from torch import nn


class Front(nn.Module):
    """One parameter, so that the layers behind it have gradients to hand on."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.shift


def profile(layers, inputs, **options):
    options = {"repeats": 2, "warm_up": 1} | options
    return profile_layers(Job(layers=layers, inputs=inputs, **options))
