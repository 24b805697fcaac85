# SPDX-License-Identifier: Apache-2.0
"""Layers and losses that look beyond what they are given, as in strangers. Options.change names them
(CHANGES, LOSSES)."""

from typing import Any

import torch.distributed as dist
from torch import nn

from . import strangers
from .strangers import LAYERS, Plain


class HandsOnTwo(Plain):
    """The second lies in the memory of the first."""

    def forward(self, hidden):
        made = super().forward(hidden)
        return made, made.detach()


class WritesToOne(Plain):
    def forward(self, given):
        hidden, other = given
        made = super().forward(hidden)
        other.data.add_(0.5)
        return made + hidden * 0.1


class ReadsTwo(Plain):
    def forward(self, given):
        return super().forward(given[0]) + given[1] * 0.1


class Keeping(Plain):
    """Reads what it made for the micro-batch before."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, hidden):
        made = super().forward(hidden)
        made = made if self.last is None else made + self.last.mean()
        self.last = made.detach()
        return made


class Clearing(Plain):
    def forward(self, hidden):
        made = super().forward(hidden)
        hidden.data.mul_(0.5)
        return made


class Rectifying(nn.Module):
    """Writes to what it is given, where nothing else is."""

    def forward(self, hidden):
        return nn.functional.leaky_relu_(hidden)


class Balancing(Plain):
    def forward(self, hidden):
        made = super().forward(hidden)
        self.balance = made.square().mean()
        return made


MODEL: list[Any] = []  # what the script keeps of its engine


class LooksAtAll(Plain):
    def forward(self, hidden):
        norms = [float(p.detach().abs().mean()) for model in MODEL for p in model.module.parameters()]
        return super().forward(hidden) * (1 + sum(norms))


def balanced(hidden, targets):
    balances = [m.balance for model in MODEL for m in model.module.modules() if hasattr(m, "balance")]
    return strangers.loss(hidden, targets) + sum(balances)


def counting(hidden, targets):
    steps = [model.global_steps for model in MODEL]
    return strangers.loss(hidden, targets) * (1 + sum(steps))


def drawing(hidden, targets):
    return strangers.loss(nn.functional.dropout(hidden, 0.3), targets)


class Ranked:
    """A loss that is a method."""

    def __init__(self):
        self.weight = 0.1

    def factor(self):
        return 1 + self.weight * dist.get_rank()

    def loss(self, hidden, targets):
        return strangers.loss(hidden, targets) * self.factor()


CHANGES: dict[str, dict[int, Any]] = {
    "overlapping": {1: HandsOnTwo, 2: WritesToOne, 5: HandsOnTwo, 6: WritesToOne},
    "keeping": {1: Keeping, 2: Clearing},
    "keeping at DeepSpeed's border": {3: Keeping, 4: Clearing},
    "reading": {1: HandsOnTwo, 2: ReadsTwo, 5: HandsOnTwo, 6: ReadsTwo},
    "in place": {2: Rectifying, 4: Rectifying, 6: Rectifying},
    "balanced": {5: Balancing, 7: Balancing},
    "looking": {1: LooksAtAll, 5: LooksAtAll},
}
LOSSES = {"balanced": balanced, "counting": counting, "ranked": Ranked().loss, "drawing": drawing}


class Looking:
    micro_batches = staticmethod(strangers.micro_batches)

    def __init__(self, name: str):
        self._kinds, self.loss = CHANGES.get(name, {}), LOSSES.get(name, strangers.loss)

    def layers_of(self, options) -> list:
        from deepspeed.pipe import LayerSpec

        MODEL.clear()
        return [LayerSpec(self._kinds.get(layer, Plain)) for layer in range(LAYERS)]
