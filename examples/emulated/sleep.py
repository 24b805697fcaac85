# SPDX-License-Identifier: Apache-2.0
"""Compute that is emulated: time passes, and nothing is computed."""

import time

import torch


class Sleep(torch.autograd.Function):
    """The identity, which takes `forward` seconds, and `backward` seconds on the way back."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None
