# SPDX-License-Identifier: Apache-2.0
"""LoRA by hand: a frozen linear layer with two thin ones beside it; the second begins with zeros."""

from torch import nn


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, scale: float = 2.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=base.weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


def adapt(model: nn.Module, rank: int = 4, names: tuple[str, ...] = ("q_proj", "v_proj")) -> None:
    """Freezes a model, or what a layer has of it, and puts an adapter on every linear layer of these names.
    In place."""
    model.requires_grad_(False)
    found = [
        (parent, name)
        for parent in model.modules()
        for name in names
        if isinstance(getattr(parent, name, None), nn.Linear)
    ]
    for parent, name in found:
        setattr(parent, name, Adapter(getattr(parent, name), rank))
