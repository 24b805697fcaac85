# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose outputs are split over the ranks of a stage."""

import torch
from torch import nn
from torch.nn import functional

from .logits import ShardedLogits
from .shard import Shard


class ShardedLinear(nn.Module):
    """Outputs [begin, end) of a linear layer of `out_features`. With `gather`, forward() returns all outputs on
    every rank; without, ShardedLogits: for the head of a model, which computes its loss in parts.
    """

    def __init__(
        self, in_features, out_features, shard: Shard, bias=True, gather=False, device=None, dtype=None
    ):
        super().__init__()
        self.shard = shard
        self.in_features = in_features
        self.out_features = out_features
        self.gather = gather
        self.begin, self.end = shard.bounds(out_features)
        rows = self.end - self.begin
        self.weight = nn.Parameter(torch.empty(rows, in_features, device=device, dtype=dtype))
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(rows, device=device, dtype=dtype)) if bias else None
        )
        nn.init.normal_(self.weight, std=in_features**-0.5)

    @property
    def split(self) -> dict[str, int]:
        return {"weight": 0} if self.bias is None else {"weight": 0, "bias": 0}

    @classmethod
    def of(cls, layer: nn.Linear, shard: Shard, gather: bool) -> "ShardedLinear":
        """This rank's outputs of a whole layer."""
        weight, bias = layer.weight, layer.bias
        places = {"device": weight.device, "dtype": weight.dtype}
        made = cls(layer.in_features, layer.out_features, shard, bias is not None, gather, **places)
        for own, whole in zip(made.parameters(), (weight, bias), strict=False):
            with torch.no_grad():
                own.copy_(shard.cut(whole, 0))
            own.requires_grad_(whole.requires_grad)
        return made

    def forward(self, x):
        part = functional.linear(self.shard.enter(x), self.weight, self.bias)
        if self.gather:
            return self.shard.gather(part, part.dim() - 1, self.out_features)
        return ShardedLogits(part, self.shard, self.out_features)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, outputs=[{self.begin}, {self.end})"
