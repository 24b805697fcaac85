# SPDX-License-Identifier: Apache-2.0
"""A model whose numbers show what a script did to its layers, and what scripts do to layers between
PipelineModule() and initialize()."""

import functools
import types

import torch
from torch import nn

LAYERS, WIDTH, SIDE, BATCH, CLASSES = 8, 3, 4, 2, 5


class Cell(nn.Module):
    """A residual convolution with what scripts turn: dropout, statistics, attributes of the layer and of its
    weights."""

    def __init__(self, drop: float = 0.0):
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.drop = nn.Dropout(drop)
        self.scale, self.table, self.calls = 1.0, [1.0], 0
        self.shift = torch.zeros(WIDTH, 1, 1)
        self.register_buffer("mask", torch.rand(1, WIDTH, SIDE, SIDE), persistent=False)
        self.act = lambda hidden: torch.tanh(hidden)

    def forward(self, hidden):
        made = self.drop(self.act(self.norm(self.conv(hidden))))
        return (
            hidden
            + made * self.mask * self.scale * self.table[0] * getattr(self.conv.weight, "gain", 1.0)
            + self.shift
        )


class Counting(Cell):
    """Its numbers depend on how often it has run, as those of a warm-up do."""

    def forward(self, hidden):
        self.calls += 1
        self.table = [*self.table, self.calls]
        return super().forward(hidden) * (1 + 0.01 * self.calls + 0.001 * len(self.table))


class Table(nn.Module):
    """What a model makes once for all its layers, as rotary embeddings are: a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sizes", torch.linspace(0.5, 1.5, SIDE), persistent=False)

    def forward(self, hidden):
        return hidden * self.sizes


class Borrowing(Cell):
    def __init__(self, lent: nn.Module):
        super().__init__()
        self.lent = lent

    def forward(self, hidden):
        return self.lent(super().forward(hidden))


class Beside(Cell):
    """Uses a module that it does not register."""

    def __init__(self, beside: nn.Module):
        super().__init__()
        self.beside = [beside]

    def forward(self, hidden):
        return super().forward(hidden) + self.beside[0](hidden)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH * SIDE * SIDE, CLASSES)

    def forward(self, hidden):
        return self.out(hidden.flatten(1))


class Tupled(Cell):
    """Hands on a tuple of one tensor, and takes one."""

    def forward(self, given):
        (hidden,) = given if isinstance(given, tuple) else (given,)
        return (super().forward(hidden),)


class TupledHead(Head):
    def forward(self, given):
        (hidden,) = given
        return super().forward(hidden)


def layers_of(options) -> list:
    from deepspeed.pipe import LayerSpec

    if options.change == "tuples":
        return [LayerSpec(Tupled) for _ in range(LAYERS - 1)] + [LayerSpec(TupledHead)]
    if options.change == "one_object":
        cell = Cell()
        return [Cell(), cell, Cell(), cell, Cell(), cell, Cell(), Head()]
    conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
    if options.change == "unregistered":
        first = Cell()
        return [first, Beside(first.conv), *(Cell() for _ in range(LAYERS - 3)), Head()]
    if options.change == "borrowed_once":
        specs = [LayerSpec(Borrowing, conv), *(LayerSpec(Beside, conv) for _ in range(LAYERS - 2))]
        return [*specs, LayerSpec(Head)]
    if options.change == "no_layer's":  # as a perceptual network is
        nn.init.constant_(conv.weight, 0.01)
        nn.init.constant_(conv.bias, 0.01)
        return [*(LayerSpec(Beside, conv) for _ in range(LAYERS - 1)), LayerSpec(Head)]
    if options.change == "borrowed_twice":  # on both ranks of DeepSpeed's partition
        others = [LayerSpec(Cell) for _ in range(LAYERS - 3)]
        return [LayerSpec(Borrowing, conv), *others, LayerSpec(Borrowing, conv), LayerSpec(Head)]
    if options.change == "one_table":
        table = Table()
        return [LayerSpec(Borrowing, table) for _ in range(LAYERS - 1)] + [LayerSpec(Head)]
    kind = Counting if options.change == "counting" else Cell
    drop = 0.5 if options.change.startswith("dropout") else 0.0
    return [LayerSpec(kind, drop) for _ in range(LAYERS - 1)] + [LayerSpec(Head)]


loss = nn.CrossEntropyLoss()  # a module: a child of the PipelineModule


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield (
            torch.randn(BATCH, WIDTH, SIDE, SIDE, generator=generator),
            torch.randint(CLASSES, (BATCH,), generator=generator),
        )


def cells(model) -> list[tuple[int, Cell]]:
    return [(int(name), layer) for name, layer in model.named_children() if isinstance(layer, Cell)]


def halve(_module, _inputs, made):
    return made / 2


def thirds(factor, _module, _inputs, made):
    return made * factor / 3


def scaled(value: float):
    return lambda _module, _inputs, made: made * value


# ---- what changes numbers


def dropout_off(_layer, cell):
    cell.drop.p = 0.0


def momentum(_layer, cell):
    cell.norm.momentum = 0.5


def attribute(layer, cell):
    cell.scale, cell.table = 1.0 + layer / 10, [0.5, "half"]


def tensor(layer, cell):
    cell.shift = torch.full((WIDTH, 1, 1), 0.1 * layer)


def buffer(layer, cell):
    cell.norm.running_mean.fill_(layer)


def parameter_attribute(layer, cell):
    cell.conv.weight.gain = 2.0 + layer


def frozen(_layer, cell):
    cell.conv.requires_grad_(False)


def channels_last(_layer, cell):
    # Of parameters DeepSpeed itself cannot have it.
    cell.mask = cell.mask.to(memory_format=torch.channels_last)


def new_forward(_layer, cell):
    cell.forward = types.MethodType(lambda self, hidden: hidden + 2 * torch.sigmoid(self.conv(hidden)), cell)


def activation(_layer, cell):
    cell.act = torch.relu


def imported_hook(_layer, cell):
    cell.conv.register_forward_hook(halve)


def partial_hook(_layer, cell):
    cell.conv.register_forward_hook(functools.partial(thirds, 2.0))


def closure_hook(layer, cell):
    cell.conv.register_forward_hook(scaled(1 + layer / 10))


def hook_of_itself(_layer, cell):
    cell.conv.register_forward_hook(lambda _module, _inputs, made: made * cell.norm.eps * 1e5)


def pre_hook(_layer, cell):
    cell.conv.register_forward_pre_hook(
        lambda _module, inputs, _words: ((2 * inputs[0],), {}), with_kwargs=True
    )


def backward_hook(_layer, cell):
    cell.norm.register_full_backward_hook(
        lambda _module, inputs, _outputs: tuple(None if g is None else g / 2 for g in inputs)
    )


def gradient_hook(_layer, cell):
    cell.conv.weight.register_hook(lambda gradient: gradient * 0)


def accumulated_hook(_layer, cell):
    cell.norm.bias.register_post_accumulate_grad_hook(lambda bias: setattr(bias, "grad", bias.grad / 2))


DONE = {
    f.__name__: f
    for f in (
        dropout_off, momentum, attribute, tensor, buffer, parameter_attribute, frozen, channels_last, new_forward, activation,
        imported_hook, partial_hook, closure_hook, hook_of_itself, pre_hook, backward_hook, gradient_hook, accumulated_hook,
    )
}  # fmt: skip

# ---- what adds something that computes the same


def hook_with_a_list(_layer, cell):
    seen = []
    cell.conv.register_forward_hook(lambda _module, _inputs, _made: seen.append(1))


class Tracker:
    def __init__(self):
        self.calls = 0

    def count(self, *_):
        self.calls += 1


def hook_of_an_object(_layer, cell):
    cell.conv.register_forward_hook(Tracker().count)


def other_object(_layer, cell):
    cell.tracker = Tracker()


# ---- what makes another layer of it


def other_submodule(_layer, cell):
    cell.norm = nn.Identity()


def weight_norm(_layer, cell):
    nn.utils.parametrizations.weight_norm(cell.conv)


def weight_gone(_layer, cell):
    cell.conv.bias = None


ADDED = {f.__name__: f for f in (hook_with_a_list, hook_of_an_object, other_object)}
DONE |= {f.__name__: f for f in (other_submodule, weight_norm, weight_gone)}


def change(model, name: str) -> None:
    """Does it to every layer of this rank; "front_frozen": freezes the first three."""
    for layer, cell in cells(model) if name == "front_frozen" else ():
        cell.requires_grad_(layer > 2)
    known = DONE | ADDED
    if name not in known:
        return
    for layer, cell in cells(model):
        known[name](layer, cell)
