# SPDX-License-Identifier: Apache-2.0
"""Models that hypothesis draws: lists of layers, each of which does a few of the things that ordinary
training code does."""

import random
from dataclasses import dataclass
from functools import partial

import numpy
import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from .hazards import CLASSES, WIDTH, cross_entropy, parameters, scripts, spec, vectors
from .model import Model

PARTS = (
    "batchnorm",
    "dropout",
    "buffer",
    "python",
    "hook",
    "checkpoint",
    "weight_norm",
    "autocast",
    "inner",
    "chance",
)
ENDS = ("view", "in_place", "pair", "integers", "single", "plain")
BETWEEN = {
    "dropout off": scripts.drop_nothing,
    "momentum": scripts.slow_norm,
    "hooks of gradients": scripts.scale_gradients,
    "hooks of forwards": scripts.halve_outputs,
    "frozen biases": parameters.freeze_biases,
    "frozen front": lambda model: [
        p.requires_grad_(False) for name, p in model.named_parameters() if name.startswith("0.")
    ],
    "weights": scripts.start_again,
    "attributes": lambda model: [setattr(m, "factor", 0.7) for m in model.modules() if isinstance(m, Drawn)],
}


@dataclass(frozen=True)
class Layer:
    """`parts` of PARTS inside of it; `end` of ENDS: what it hands on; `tied`: it is one of those that share a
    weight."""

    parts: tuple[str, ...] = ()
    end: str = "plain"
    frozen: bool = False
    tied: bool = False


@dataclass(frozen=True)
class Recipe:
    """A model, and what the script does with it."""

    layers: tuple[Layer, ...]
    between: tuple[str, ...] = ()
    seed_layers: bool = False
    optimizer: str = "Adam"
    clipped: bool = False
    checkpointed: bool = False

    def model(self) -> Model:
        pipeline = {"seed_layers": self.seed_layers, "activation_checkpoint_interval": int(self.checkpointed)}
        config = {"gradient_clipping": 0.5 if self.clipped else 0.0}
        if self.checkpointed:
            config["pipeline"] = {"use_reentrant": False}
        return Model(
            "drawn", partial(layers, self), vectors, cross_entropy, partial(change, self.between), None, pipeline, config,
            optimizer=self.optimizer,
        )  # fmt: skip


def change(names: tuple[str, ...], model) -> None:
    for name in names:
        BETWEEN[name](model)


def layers(recipe: Recipe) -> list:
    from deepspeed.pipe import TiedLayerSpec

    made = [
        TiedLayerSpec("drawn", Drawn, layer) if layer.tied else spec(Drawn, layer) for layer in recipe.layers
    ]
    return [*made, spec(DrawnHead)]


class Drawn(nn.Module):
    """hidden, or a tuple that begins with it -> the same in another form."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.layer, self.factor, self.calls = layer, 1.0, 0
        self.mix = nn.Linear(WIDTH, WIDTH, bias=not layer.tied)
        # All that tied layers share: DeepSpeed does not keep more of them equal.
        self.weight = self.mix.weight
        self.norm = nn.BatchNorm1d(WIDTH) if "batchnorm" in layer.parts else nn.Identity()
        self.drop = nn.Dropout(0.2) if "dropout" in layer.parts else nn.Identity()
        if "buffer" in layer.parts:
            self.register_buffer("seen", torch.zeros(WIDTH))
        if "weight_norm" in layer.parts:
            nn.utils.parametrizations.weight_norm(self.mix)
        if "hook" in layer.parts:
            self.mix.register_forward_hook(lambda module, inputs, output: output * 0.5)
        if layer.frozen:
            self.requires_grad_(False)

    def forward(self, given):
        x, rest = (given[0], given[1:]) if isinstance(given, tuple) else (given, ())
        inside = (
            partial(checkpoint, self.inside, use_reentrant=False)
            if "checkpoint" in self.layer.parts
            else self.inside
        )
        return self.handed_on(x + self.factor * inside(x), x, rest)

    def inside(self, x):
        if "buffer" in self.layer.parts:
            with torch.no_grad():
                self.seen.lerp_(x.mean(0), 0.1)
            x = x - 0.1 * self.seen
        if "python" in self.layer.parts:
            self.calls += 1
            x = x * (1 + 1e-3 * self.calls)
        if "chance" in self.layer.parts:
            x = x * (1 + 0.01 * random.random() + 0.01 * numpy.random.rand())
        if "inner" in self.layer.parts:
            with torch.enable_grad():
                start = x.detach().requires_grad_()
                x = x + 0.1 * torch.autograd.grad(torch.tanh(start).sum(), start)[0]
        if "autocast" in self.layer.parts:
            with torch.autocast("cpu", torch.bfloat16):
                return self.drop(torch.tanh(self.norm(self.mix(x).float())))
        return self.drop(torch.tanh(self.norm(self.mix(x))))

    def handed_on(self, made, x, rest):
        other = next((t for t in rest if t.is_floating_point()), None)
        made = made if other is None else made + 0.1 * other
        if self.layer.end == "view":
            return torch.cat([made, x], 0)[: made.size(0)]
        if self.layer.end == "in_place":
            return made.mul_(0.9).add_(0.1)
        if self.layer.end == "pair":
            return made, torch.sigmoid(made)
        if self.layer.end == "integers":
            return made, torch.arange(made.size(0)), made > 0
        return (made,) if self.layer.end == "single" else made


class DrawnHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, given):
        return self.head(given[0] if isinstance(given, tuple) else given)


@st.composite
def drawn_layers(draw) -> Layer:
    parts, end = draw(st.lists(st.sampled_from(PARTS), max_size=2, unique=True)), draw(st.sampled_from(ENDS))
    kind = draw(st.sampled_from(["", "", "", "frozen", "tied"]))
    return Layer(() if kind == "tied" else tuple(sorted(parts)), end, kind == "frozen", kind == "tied")


@st.composite
def recipes(draw) -> Recipe:
    """Six to nine layers with the head; each half of them has something to train, without which DeepSpeed
    alone does not start."""
    made = draw(st.lists(drawn_layers(), min_size=5, max_size=8))
    for trained in (1, -1):
        made[trained] = Layer(made[trained].parts, made[trained].end)
    return Recipe(
        tuple(made),
        tuple(draw(st.lists(st.sampled_from(sorted(BETWEEN)), max_size=2, unique=True))),
        draw(st.booleans()),
        draw(st.sampled_from(["Adam", "SGD"])),
        draw(st.integers(0, 3)) == 0,
        draw(st.integers(0, 3)) == 0,
    )
