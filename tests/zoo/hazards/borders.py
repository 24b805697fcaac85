# SPDX-License-Identifier: Apache-2.0
"""What crosses the borders of stages."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from .base import BATCH, CLASSES, LENGTH, WIDTH, Block, cross_entropy, hazard, images, sequences, spec, stack


class Pair(nn.Module):
    """(a, b) -> (a, b), both with gradients that meet in both."""

    def __init__(self):
        super().__init__()
        self.mix, self.turn = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, pair):
        a, b = pair if isinstance(pair, tuple) else (pair, torch.tanh(pair))
        return a + torch.tanh(self.mix(b)), b + torch.tanh(self.turn(a))


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pair):
        return self.head(pair[0] + pair[1])


class Independent(Pair):
    """(a, b) -> (a, b), which share nothing."""

    def forward(self, pair):
        a, b = pair if isinstance(pair, tuple) else (pair, 2 * pair)
        return a + torch.tanh(self.mix(a)), b + torch.tanh(self.turn(b))


class Experts(nn.Module):
    """(hidden, auxiliary loss) -> the same: two experts, of which a gate takes one for each row."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, pair):
        x, auxiliary = pair if isinstance(pair, tuple) else (pair, torch.zeros(1))
        shares = self.gate(x).softmax(-1)
        weight, chosen = shares.max(-1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            made = made.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return x + torch.tanh(made), auxiliary + shares.mean(0).square().sum().reshape(1)


class ExpertsHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pair):
        return self.head(pair[0]), pair[1]


def with_auxiliary(outputs, labels):
    return cross_entropy(outputs[0], labels) + 0.1 * outputs[1].sum()


class Masked(Block):
    """(hidden, mask of booleans, positions): tensors without a gradient ride along."""

    def forward(self, given):
        if not isinstance(given, tuple):
            given = given, given > 0, torch.arange(given.size(1)).repeat(given.size(0), 1)
        x, mask, positions = given
        return super().forward(x) * torch.where(mask, 1.0, 0.9) + 0.01 * positions, mask, positions


class Asks(Block):
    """(hidden, mask that requires a gradient) -> the same, by whether it does: torch chooses a kernel for
    attention so. Trainers make all inputs require one for re-entrant checkpoints."""

    def forward(self, given):
        if not isinstance(given, tuple):
            given = given, torch.zeros_like(given).requires_grad_()
        x, mask = given
        return super().forward(x) * (1.0 if mask.requires_grad else 0.9) + mask, mask


class AsksHead(Asks):
    """Uses the mask, too: DeepSpeed waits for a gradient of every tensor of numbers."""

    def forward(self, given):
        return super().forward(given)[0][..., :CLASSES]


class MaskedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, given):
        return self.head(given[0])


class Single(Block):
    """A tuple of one tensor."""

    def forward(self, given):
        return (super().forward(given[0] if isinstance(given, tuple) else given),)


class Stopped(Block):
    """Gradients pass through a part of it only."""

    def forward(self, x):
        return x.detach() + 0.1 * super().forward(x)


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, given):
        return self.head(given[0])


class View(nn.Module):
    """Returns views of what it was given, or of what it made: transposed, expanded, sliced."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.mix = kind, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if self.kind == "flip":
            return x.transpose(0, 1)
        if self.kind == "slice":
            return torch.cat([self.mix(x), x], -1)[..., :WIDTH]
        return x + self.mix(x.mean(0, keepdim=True)).expand(x.shape)


class InPlace(nn.Module):
    """Changes what it was given; `first`: what it made itself."""

    def __init__(self, first=False):
        super().__init__()
        self.first, self.mix = first, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.mix(x).mul_(0.9) if self.first else x.add_(torch.tanh(self.mix(x.clone()))).mul_(1.1)


class Convolved(nn.Module):
    """`last`: works in that memory format inside."""

    def __init__(self, last):
        super().__init__()
        self.last, self.norm, self.mix = last, nn.GroupNorm(2, WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        x = x.contiguous(memory_format=torch.channels_last) if self.last else x
        return functional.relu(self.mix(self.norm(x)), inplace=True).contiguous()


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(x.mean((2, 3)))


def convolutions(last=False):
    first = spec(nn.Conv2d, 3, WIDTH, 3, padding=1)
    return [first, *(spec(Convolved, last) for _ in range(5)), spec(nn.MaxPool2d, 2), spec(Pooled)]


hazard("several gradients")(lambda: [*(spec(Pair) for _ in range(6)), spec(Joined)])
hazard("several gradients that share nothing")(lambda: [*(spec(Independent) for _ in range(6)), spec(Joined)])
hazard("experts with an auxiliary loss", loss=with_auxiliary)(
    lambda: [*(spec(Experts) for _ in range(6)), spec(ExpertsHead)]
)
hazard("booleans and integers ride along")(lambda: [*(spec(Masked) for _ in range(6)), spec(MaskedHead)])
hazard("a mask that requires a gradient")(lambda: [*(spec(Asks) for _ in range(6)), spec(AsksHead)])
hazard("a tuple of one")(lambda: [*(spec(Single) for _ in range(6)), spec(First)])
hazard("a gradient that stops")(lambda: stack(Stopped))
hazard("convolutions", batch=images)(convolutions)
hazard("convolutions, channels_last", batch=images)(lambda: convolutions(last=True))


@hazard("views", batch=sequences)
def _views():
    kinds = "flip", "expand", "slice", "expand", "flip", "expand", "flip"  # DeepSpeed itself sends no view
    return [*(spec(View, kind) for kind in kinds), spec(nn.Linear, WIDTH, CLASSES)]


@hazard("in place")
def _in_place():
    # None begins a stage of DeepSpeed.
    return [*(spec(InPlace, number % 2 == 0) for number in range(7)), spec(nn.Linear, WIDTH, CLASSES)]


@hazard("functions")
def _functions():
    return [
        spec(Block),
        torch.tanh,
        spec(Block),
        lambda x: 2 * x,
        spec(Block),
        partial(torch.mul, 0.5),
        spec(Block),
        *stack(Block, count=1),
    ]


def lengths(generator):
    """Micro-batches of other lengths."""
    length = int(torch.randint(2, LENGTH + 1, (), generator=generator))
    inputs = torch.randn(BATCH, length, WIDTH, generator=generator)
    return inputs, torch.randint(CLASSES, (BATCH, length), generator=generator)


hazard("lengths that change", batch=lengths, pipeline={"dynamic_shape": True})(lambda: stack(Block))
