# SPDX-License-Identifier: Apache-2.0
"""Small models, each with one thing that ordinary training code does and that a pipeline plan must not lose.

The names of HAZARDS are those of the table in docs/zoo.md.
"""

import random
from functools import partial
from zlib import crc32

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .model import Model

WIDTH, CLASSES, BATCH, LENGTH, VOCABULARY = 8, 4, 4, 5, 13
HAZARDS: dict[str, Model] = {}


def vectors(generator):
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)


def sequences(generator):
    inputs = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    return inputs, torch.randint(CLASSES, (BATCH, LENGTH), generator=generator)


def tokens(generator):
    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def images(generator):
    return torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))


def hazard(name: str, batch=vectors, loss=cross_entropy, **more):
    """Puts the function that it decorates, which makes the layers, into HAZARDS."""

    def add(layers):
        HAZARDS[name] = Model(name, layers, batch, loss, **more)
        return layers

    return add


def spec(kind, *args, **kwargs):
    from deepspeed.pipe import LayerSpec

    return LayerSpec(kind, *args, **kwargs)


def stack(kind, *args, count: int = 7, classes: int = CLASSES, **kwargs) -> list:
    """`count` layers of a kind and a head."""
    return [*(spec(kind, *args, **kwargs) for _ in range(count)), spec(nn.Linear, WIDTH, classes)]


class Block(nn.Module):
    """x + tanh(linear(x)), what most hazards begin from."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))


# Random numbers


class Dropping(Block):
    def __init__(self, p=0.2):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.mix(x)))


class Skipped(Block):
    """Stochastic depth: Python's generator says which layers run."""

    def forward(self, x):
        return x if self.training and random.random() < 0.3 else super().forward(x)


class Shaken(Block):
    """Numbers of Python's and of NumPy's generator."""

    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * random.random() + 0.1 * numpy.random.rand())


class Noisy(Block):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn_like(x)


class OwnGenerator(Block):
    """Draws from a generator of its own, in the order of its forwards."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn(x.shape, generator=self.generator)


class Attending(nn.Module):
    """Dropout that is no module: inside of scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, -1)
        return x + functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)


hazard("dropout")(lambda: stack(Dropping))
hazard("dropout, seed_layers", pipeline={"seed_layers": True})(lambda: stack(Dropping))
hazard("dropout of no module", batch=sequences)(lambda: stack(Attending))
hazard("noise")(lambda: stack(Noisy))
hazard("a generator of its own")(lambda: stack(OwnGenerator))
hazard("noise of Python's and NumPy's")(lambda: stack(Shaken))
hazard("stochastic depth")(lambda: [spec(Block), *stack(Skipped, count=5)])  # a stage that skips all it has ends in no gradient


# State


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.mix(x)))


class FixedNorm(Normed):
    """Its statistics stay in evaluation mode, as in fine-tuning."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


class Buffers(Block):
    """A running mean in a buffer, one that is no part of the state, and one that a forward replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.rand(WIDTH), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.steps = self.steps + 1
        return super().forward(x - 0.1 * self.mean) * self.scale


class Counting(Block):
    """A number of Python's in the layer counts its forwards and counts in them."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 1e-3 * self.calls)


class Cached(Block):
    """A tensor that its first forward makes, in no buffer."""

    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.linspace(0.9, 1.1, x.size(-1))
        return super().forward(x * self.cache)


class Reparametrized(Block):
    """`by`: what is done to its linear layer."""

    def __init__(self, by):
        super().__init__()
        self.mix = by(self.mix)


hazard("BatchNorm")(lambda: stack(Normed))
hazard("BatchNorm, statistics fixed")(lambda: stack(FixedNorm))
hazard("buffers")(lambda: stack(Buffers))
hazard("state of Python's")(lambda: stack(Counting))
hazard("a cached tensor")(lambda: stack(Cached))
hazard("weight_norm")(lambda: stack(Reparametrized, nn.utils.parametrizations.weight_norm))
hazard("weight_norm, by hook")(lambda: stack(Reparametrized, nn.utils.weight_norm))
hazard("spectral_norm")(lambda: stack(Reparametrized, nn.utils.parametrizations.spectral_norm))


# Parameters


class Frozen(Block):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Adapted(nn.Module):
    """LoRA: a frozen layer and two thin ones beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


class Unused(Block):
    """A parameter that no forward reads, and one that only some read."""

    def __init__(self):
        super().__init__()
        self.never, self.rarely = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return super().forward(x) * (self.rarely if float(x.detach().sum()) > 0 else 1)


class Twice(Block):
    """Uses its weight twice."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / 4)

    def forward(self, x):
        return functional.embedding(x, self.weight)


def scores(head, x):
    return x @ head.weight.t()


@hazard("frozen front")
def _frozen():
    return [*(spec(Frozen) for _ in range(3)), *stack(Block, count=4)]


def freeze_front(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(int(name.split(".")[0]) > 2)


def freeze_biases(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))


hazard("frozen front, by the script", between=freeze_front)(lambda: stack(Block))
hazard("frozen biases, by the script", between=freeze_biases)(lambda: stack(Block))
hazard("adapters")(lambda: stack(Adapted))
hazard("unused parameters")(lambda: stack(Unused))
hazard("a weight used twice")(lambda: stack(Twice))


@hazard("tied embedding", batch=tokens)
def _tied():
    from deepspeed.pipe import TiedLayerSpec

    first = TiedLayerSpec("embedding", Head)
    return [first, *(spec(Block) for _ in range(6)), TiedLayerSpec("embedding", Head, forward_fn=scores)]


@hazard("one module at several places")
def _shared():
    shared = nn.Linear(WIDTH, WIDTH)
    return [Block(), shared, Block(), shared, Block(), shared, Block(), nn.Linear(WIDTH, CLASSES)]


@hazard("modules that are built", batch=sequences)
def _built():
    return [*(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True) for _ in range(5)), nn.Linear(WIDTH, CLASSES)]


@hazard("bf16, ZeRO-1", batch=tokens, config={"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}})
@hazard("embedding and head to shard", batch=tokens, shardable=True)
def _ends():
    return [spec(nn.Embedding, VOCABULARY + 3, WIDTH), *(spec(Block) for _ in range(6)), spec(nn.Linear, WIDTH, VOCABULARY + 3)]


# What crosses borders


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
hazard("experts with an auxiliary loss", loss=with_auxiliary)(lambda: [*(spec(Experts) for _ in range(6)), spec(ExpertsHead)])
hazard("booleans and integers ride along")(lambda: [*(spec(Masked) for _ in range(6)), spec(MaskedHead)])
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
    return [*(spec(InPlace, number % 2 == 0) for number in range(7)), spec(nn.Linear, WIDTH, CLASSES)]  # none begins a stage of DeepSpeed


@hazard("functions")
def _functions():
    return [spec(Block), torch.tanh, spec(Block), lambda x: 2 * x, spec(Block), partial(torch.mul, 0.5), spec(Block), *stack(Block, count=1)]


def lengths(generator):
    """Micro-batches of other lengths."""
    length = int(torch.randint(2, LENGTH + 1, (), generator=generator))
    inputs = torch.randn(BATCH, length, WIDTH, generator=generator)
    return inputs, torch.randint(CLASSES, (BATCH, length), generator=generator)


hazard("lengths that change", batch=lengths, pipeline={"dynamic_shape": True})(lambda: stack(Block))


# Autograd


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient


class Squared(Block):
    def forward(self, x):
        return x + Square.apply(torch.tanh(self.mix(x)))


class Lower(Block):
    """A part in bfloat16, a part without gradients."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            made = self.mix(x)
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True).clamp(min=1)
        return x + torch.tanh(made.float()) / scale


class Inner(Block):
    """Its forward asks autograd for a gradient, as energies and penalties do."""

    def forward(self, x):
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(torch.tanh(self.mix(start)).sum(), start, create_graph=True)
        return super().forward(x) + 0.1 * force


class Checkpointed(Block):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return x + self.cells(x)[0]


class Compiled(nn.Module):
    """Compiles a layer of its own. aot_eager: a graph without a compiler's seconds."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.compiled = torch.compile(self.block, backend="aot_eager")

    def forward(self, x):
        return self.compiled(x)


def compile_layers(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend="aot_eager")


def scaled(gradients, factor):
    """Of a hook around a backward; the first layer of a model has no gradient to hand on."""
    return tuple(None if gradient is None else gradient * factor for gradient in gradients)


class Hooked(Block):
    """Hooks that it registers itself."""

    def __init__(self):
        super().__init__()
        self.mix.register_forward_hook(lambda module, inputs, output: output * 0.5)
        self.mix.weight.register_hook(lambda gradient: gradient * 2)
        self.register_full_backward_hook(lambda module, given, taken: scaled(given, 0.9))


hazard("an autograd.Function")(lambda: stack(Squared))
hazard("autocast and no_grad")(lambda: stack(Lower))
hazard("autograd.grad in a forward")(lambda: stack(Inner))
hazard("checkpoint in a layer")(lambda: stack(Checkpointed, False))
hazard("re-entrant checkpoint in a layer")(lambda: [spec(Block), *stack(Checkpointed, True, count=6)])
hazard("checkpointing of DeepSpeed's", pipeline={"activation_checkpoint_interval": 2}, config={"pipeline": {"use_reentrant": False}})(
    lambda: stack(Block)
)
hazard("LSTM", batch=sequences)(lambda: stack(Recurrent))
hazard("a compiled part")(lambda: stack(Compiled))
hazard("compiled layers, by the script", between=compile_layers)(lambda: stack(Block))
hazard("hooks of its own")(lambda: stack(Hooked))


# What a script does to the model before deepspeed.initialize()


def drop_nothing(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def slow_norm(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum, module.eps = 0.5, 0.1


def scale_gradients(model):
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * 0.3)


def halve_outputs(model):
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == WIDTH:
            module.register_forward_hook(lambda module, inputs, output: output * 0.5)
            module.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))


def halve_gradients(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.register_full_backward_hook(lambda module, given, taken: scaled(given, 0.5))


def replace_parts(model):
    """Other modules in the place of a layer's own, as quantisation and adapters do."""
    for module in model.modules():
        if isinstance(module, Dropping):
            module.drop = nn.Hardtanh(-0.5, 0.5)


def replace_forward(model):
    for module in model.modules():
        if isinstance(module, Block):
            module.forward = lambda x, module=module: x + torch.sigmoid(module.mix(x))


def start_again(model):
    """The weights, as scripts initialise them; by name, so that it counts nowhere which rank has which."""
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(crc32(name.encode())))


def add_parameters(model):
    for module in model.modules():
        if isinstance(module, Block):
            nn.utils.parametrizations.weight_norm(module.mix)


def mark(model):
    """Attributes on parameters: the optimizer of `marked_groups` reads them."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.slow = True


def marked_groups(model):
    slow = [p for p in model.parameters() if hasattr(p, "slow")]
    return torch.optim.AdamW([{"params": [p for p in model.parameters() if not hasattr(p, "slow")]}, {"params": slow, "lr": 1e-4}], lr=0.01)


hazard("dropout off, by the script", between=drop_nothing)(lambda: stack(Dropping))
hazard("BatchNorm's momentum, by the script", between=slow_norm)(lambda: stack(Normed))
hazard("hooks of gradients, by the script", between=scale_gradients)(lambda: stack(Block))
hazard("hooks of forwards, by the script", between=halve_outputs)(lambda: stack(Block))
hazard("hooks of backwards, by the script", between=halve_gradients)(lambda: stack(Block))
hazard("other parts, by the script", between=replace_parts)(lambda: stack(Dropping))
hazard("another forward, by the script", between=replace_forward)(lambda: stack(Block))
hazard("weights, by the script", between=start_again)(lambda: stack(Block))
hazard("parametrizations, by the script", between=add_parameters)(lambda: stack(Block))
hazard("marked parameters, two groups", between=mark, optimizer=marked_groups)(lambda: stack(Block))


# What a script does after deepspeed.initialize(), before the first step


def learn_slowly(engine):
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.001


hazard("learning rate, after the start", after=learn_slowly)(lambda: stack(Block))
hazard("weights, after the start", after=lambda engine: start_again(engine.module))(lambda: stack(Block))
hazard("dropout off, after the start", after=lambda engine: drop_nothing(engine.module))(lambda: stack(Dropping))
hazard("hooks of gradients, after the start", after=lambda engine: scale_gradients(engine.module))(lambda: stack(Block))
hazard("frozen biases, after the start", after=lambda engine: freeze_biases(engine.module))(lambda: stack(Block))


# The loss and the rest


class Weighted(nn.Module):
    """A loss with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.linspace(0.5, 1.5, CLASSES))

    def forward(self, logits, labels):
        return functional.cross_entropy(logits, labels, weight=self.weights)


def own_class(**arguments):
    """A script's own subclass, with its own list of layers inside."""
    from deepspeed.pipe import PipelineModule

    class Own(PipelineModule):
        def __init__(self, layers, scale=2.0, **more):
            self.scale = scale
            super().__init__(layers=[*layers[:3], lambda x: x * self.scale, *layers[3:]], **more)

    return Own(**arguments)


hazard("a loss that is a module", loss=Weighted())(lambda: stack(Block))
hazard("a subclass of PipelineModule", kind=own_class, more_layers=1)(lambda: stack(Block, count=6))
hazard("SGD, clipped", optimizer="SGD", config={"gradient_clipping": 0.1})(lambda: stack(Block))
