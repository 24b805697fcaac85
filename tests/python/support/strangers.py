# SPDX-License-Identifier: Apache-2.0
"""A chain of small layers, some of which are replaced by what people's models have in them. Options.change
names it (CHANGES)."""

from collections import namedtuple
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH, BATCH = 8, 6, 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + torch.tanh(self.lin(hidden))


# ---- what layers hand on

Pair = namedtuple("Pair", "hidden mask")


class Listing(Plain):
    def forward(self, hidden):
        return [super().forward(hidden), hidden.detach()]


class Naming(Plain):
    def forward(self, hidden):
        return Pair(super().forward(hidden), hidden.detach())


class TakesTwo(Plain):
    def forward(self, pair):
        return super().forward(pair[0]) + pair[1] * (
            0.1 if isinstance(pair, list) or hasattr(pair, "mask") else 0.2
        )


class Marking(Plain):
    def forward(self, hidden):
        made = super().forward(hidden)
        made.gate = 2.0
        return made


class Marked(Plain):
    def forward(self, hidden):
        return super().forward(hidden) * getattr(hidden, "gate", 1.0)


class Loud(torch.Tensor):
    """Of a class with operators of its own."""


class Shouting(Plain):
    def forward(self, hidden):
        return super().forward(hidden).as_subclass(Loud)


def turned(hidden):
    """The same numbers, laid out in columns."""
    return hidden.t().contiguous().t()


class Turning(Plain):
    def forward(self, hidden):
        return turned(super().forward(hidden))


def turning():
    return lambda hidden: turned(hidden * 2)


# ---- what forwards change beside buffers, and what backwards read of it


class Teaching(Plain):
    """A teacher that follows its student, as people write it."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, hidden):
        for mine, theirs in zip(self.teacher.parameters(), self.lin.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        return super().forward(hidden) + self.teacher(hidden)


class Renorming(Plain):
    """An embedding that its forward scales in place, where autograd sees it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, max_norm=1.0)

    def forward(self, hidden):
        return super().forward(hidden) + self.table((hidden.detach()[:, 0].abs() * 9).long() % 5)


class Scaling(Plain):
    """Its backward reads what the forward before it has left."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0
        self.register_full_backward_hook(
            lambda module, inputs, _outputs: tuple(g if g is None else g * module.scale for g in inputs)
        )

    def forward(self, hidden):
        self.scale = 1.0 + 0.1 * float(hidden.detach().mean())
        return super().forward(hidden)


class ScalingATensor(Plain):
    """Its backward reads so in a hook on what its forward computes."""

    scale = 1.0

    def forward(self, hidden):
        self.scale = 1.0 + 0.1 * float(hidden.detach().mean())
        made = super().forward(hidden)
        if made.requires_grad:
            made.register_hook(lambda gradient: gradient * self.scale)
        return torch.tanh(made)


class ScalingAWeight(Plain):
    """In a hook on a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0
        self.lin.weight.register_hook(lambda gradient: gradient * self.scale)

    def forward(self, hidden):
        self.scale = 1.0 + 0.1 * float(hidden.detach().mean())
        return super().forward(hidden)


class Halving(Plain):
    """Counts its forwards, and has a hook that reads nothing of it."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.lin.weight.register_hook(lambda gradient: 0.5 * gradient)

    def forward(self, hidden):
        self.calls += 1
        return super().forward(hidden)


class Hooking(Plain):
    """A hook on what its forward computes, as to clip its gradient."""

    def forward(self, hidden):
        made = super().forward(hidden)
        if self.training:
            made.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return made


class Dropping(Plain):
    def forward(self, hidden):
        return nn.functional.dropout(super().forward(hidden), 0.3, self.training)


class Scripted(Plain):
    def __init__(self, chance=0.0):
        super().__init__()
        dropping = [nn.Dropout(chance)] * (chance > 0)  # compiled, one of 0 draws as well, after some runs
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *dropping))

    def forward(self, hidden):
        return super().forward(hidden) + self.inner(hidden)


class ScriptedDropping(Scripted):
    def __init__(self):
        super().__init__(0.3)


class Attending(Plain):
    """Dropout that no name says."""

    def forward(self, hidden):
        made = super().forward(hidden)[None]
        return nn.functional.scaled_dot_product_attention(made, made, made, dropout_p=0.3 * self.training)[0]


class Rerunning(Dropping):
    """A layer that checkpoints what it has of its class."""

    def forward(self, hidden):
        return checkpoint(super().forward, hidden, use_reentrant=False)


class Norming(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden):
        return self.norm(super().forward(hidden))


# ---- what layers keep beside themselves

CALLS = [0]
CONTEXT: dict[str, torch.Tensor] = {}
step = 0


class Globally(Plain):
    """Its numbers depend on how often it has run, which globals of the script count."""

    def forward(self, hidden):
        global step
        step += 1
        CALLS[0] += 1
        return super().forward(hidden) * (1 + 0.01 * step + 0.01 * CALLS[0])


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, hidden):
        self.calls += 1
        return hidden * (1 + 0.01 * self.calls)


def closing():
    """A layer that is a function."""
    calls = 0

    def layer(hidden):
        nonlocal calls
        calls += 1
        return hidden * (1 + 0.01 * calls)

    return layer


class Putting(Plain):
    def forward(self, hidden):
        CONTEXT["hidden"] = hidden.detach()
        return super().forward(hidden)


class Getting(Plain):
    def forward(self, hidden):
        return super().forward(hidden) + 0.1 * CONTEXT.get("hidden", 0.0)


class Drawing(Plain):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def forward(self, hidden):
        return super().forward(hidden) + 0.1 * torch.randn(hidden.shape, generator=self.generator)


def forget() -> None:
    """What a script begins with."""
    global step
    step, CALLS[0] = 0, 0
    CONTEXT.clear()


# By name: other layers by their index.
CHANGES: dict[str, dict[int, Any]] = {
    "": {},
    "list": {1: Listing, 2: TakesTwo},
    "named": {1: Naming, 2: TakesTwo},
    "attribute": {1: Marking, 2: Marked},
    "class": {1: Shouting},
    "attribute at DeepSpeed's border": {3: Marking, 4: Marked},
    "strides at DeepSpeed's border": {3: Turning},
    "strides of a function at DeepSpeed's border": {3: turning},
    "teacher": {1: Teaching, 5: Teaching},
    "teacher and dropout": {1: Teaching, 2: Dropping, 5: Teaching},
    "renormed": {1: Renorming, 2: Dropping, 5: Renorming},
    "scale": {1: Scaling, 5: Scaling},
    "halved": {1: Halving, 5: Halving},
    "tensor's scale": {1: ScalingATensor, 5: ScalingATensor},
    "weight's scale": {1: ScalingAWeight, 5: ScalingAWeight},
    "hooks": {1: Hooking, 2: Dropping, 5: Hooking},
    "dropout": {1: Dropping, 5: Dropping},
    "globals": {1: Globally, 5: Dropping},
    "objects": {1: Counter, 3: closing, 5: Dropping},
    "context": {0: Putting, 3: Getting, 4: Putting, 7: Getting},
    "context of a stage": {0: Putting, 1: Getting, 4: Putting, 5: Getting},
    "generator": {1: Drawing, 2: Drawing, 5: Drawing, 6: Drawing},
    "attention": {1: Attending, 5: Attending},
    "checkpoint": {1: Rerunning, 5: Rerunning},
    "script": {1: Scripted, 5: Scripted},
    "script with dropout": {1: ScriptedDropping, 5: ScriptedDropping},
    "statistics": {1: Norming, 5: Norming},
}


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    forget()
    shared = torch.Generator().manual_seed(3)
    kinds = [CHANGES[options.change].get(layer, Plain) for layer in range(LAYERS)]
    return [
        kind() if kind in (Counter, closing, turning) else LayerSpec(kind, *[shared] * (kind is Drawing))
        for kind in kinds
    ]


loss = nn.functional.mse_loss


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)
