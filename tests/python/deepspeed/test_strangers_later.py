# SPDX-License-Identifier: Apache-2.0
"""What layers make by their rank, hand on of their own, and a loss that learns of the model once it trains."""

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec
from ostinato.deepspeed.reads import held_by
from support import strangers
from support.plans import make_plan
from support.strangers import LAYERS, Plain
from support.training import MICRO_BATCHES, MODELS
from test_strangers import BASE, LAYOUTS, same
from test_strangers_training import listed, nothing, trained
from torch import nn


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: {"plan": str(make_plan(folder / name, LAYOUTS[name], LAYERS, MICRO_BATCHES)), "timeout_s": 20} for name in ("wave", "split", "stock")}


class Choosing(Plain):
    """One of two classes that have the same attributes."""

    def __init__(self):
        super().__init__()
        self.act = nn.Tanh() if dist.get_rank() == 0 else nn.Sigmoid()

    def forward(self, hidden):
        return self.act(super().forward(hidden))


class Repeating(Choosing):
    def __init__(self):
        super().__init__()
        self.act = nn.Sequential(*[nn.Tanh()] * (1 + dist.get_rank()))


class Twice(Plain):
    def forward(self, hidden):
        return 2 * super().forward(hidden)


class BuildsByRank(LayerSpec):
    def build(self, log=False):
        return Plain() if os.environ["RANK"] == "0" else Twice()


class ByProcess(Plain):
    def forward(self, hidden):
        return super().forward(hidden) * (1 + os.getpid() % 97)


class HandsOnItsWeight(Plain):
    def forward(self, hidden):
        return super().forward(hidden), self.lin.weight


class TakesAWeight(Plain):
    def forward(self, given):
        return super().forward(given[0]) @ given[1]


class Regularized:
    """A loss that is given parameters, or the engine, once there are these."""

    def __init__(self):
        self.penalized, self.engine, self.scale = [], None, 1.0

    def __call__(self, hidden, targets):
        steps = self.engine.global_steps if self.engine else 0
        return strangers.loss(hidden, targets) * (self.scale + steps) + 0.01 * sum(p.square().sum() for p in self.penalized)


LAYERS_OF = {
    "choosing": [LayerSpec(Choosing) for _ in range(LAYERS)],
    "repeating": [LayerSpec(Repeating) for _ in range(LAYERS)],
    "builds": [BuildsByRank(Plain) for _ in range(LAYERS)],
    "process": [LayerSpec(ByProcess) for _ in range(LAYERS)],
    "weight": [LayerSpec({1: HandsOnItsWeight, 2: TakesAWeight}.get(layer, Plain)) for layer in range(LAYERS)],
    "regularized": [LayerSpec(Plain) for _ in range(LAYERS)],
}


class Later:
    micro_batches = staticmethod(strangers.micro_batches)

    def __init__(self, name: str):
        self._name = name

    @property
    def loss(self):
        return Regularized() if self._name == "regularized" else strangers.loss

    def layers_of(self, options) -> list:
        return list(LAYERS_OF[self._name])


MODELS |= {name: Later(name) for name in LAYERS_OF}


def trains(options, then=nothing) -> dict:
    return trained(options, listed, then=then)


def both(world, options, section, *given) -> tuple[dict, dict, str]:
    """DeepSpeed's of rank 0, ours, and all that ours have said."""
    theirs, ours = world.run(trains, options, *given), world.run(trains, replace(options, section=section), *given)
    assert not theirs[0]["error"] and not ours[0]["error"]
    return theirs[0], ours[0], " ".join(line for rank in ours for line in rank["said"])


SAID = {
    "choosing": 'its constructor makes its class of "act" otherwise on its new rank than on rank 0',
    "repeating": 'its constructor makes its submodules of "act" otherwise on its new rank than on rank 0',
    "builds": "its constructor makes its class otherwise on its new rank than on rank 0",
    "process": "ask for the rank, its process or its machine",
}


@pytest.mark.parametrize("model", SAID)
def test_what_layers_are_by_rank_is_said(world2, sections, model):
    theirs, ours, said = both(world2, replace(BASE, model=model), sections["wave"])
    assert not same(ours, theirs) and SAID[model] in said and "shown: equal" not in said


@pytest.mark.parametrize("plan", ["wave", "split"])
def test_a_weight_crosses_as_its_numbers(world2, sections, plan):
    theirs, ours, said = both(world2, replace(BASE, model="weight"), sections[plan])
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-6) and "several tensors with gradients cross from layer 1" in said


def given_parameters(engine):
    engine.module.loss_fn.penalized = list(engine.module.parameters())


def given_some_after_two_steps(engine):
    if engine.global_steps == 2:
        engine.module.loss_fn.penalized = list(engine.module.parameters())[:2]


def more_in_the_same_list(engine):
    if engine.global_steps == 2:
        engine.module.loss_fn.penalized.extend(list(engine.module.parameters())[:2])


def another(engine):
    engine.module.loss_fn = lambda hidden, targets: strangers.loss(hidden, targets) + 0.01 * sum(p.square().sum() for p in engine.module.parameters())


def given_the_engine_and_a_number(engine):
    engine.module.loss_fn.engine, engine.module.loss_fn.scale = engine, 1 + engine.global_steps


@pytest.mark.parametrize(
    ("then", "alike"),
    [(given_parameters, False), (given_some_after_two_steps, False), (more_in_the_same_list, False), (another, False), (given_the_engine_and_a_number, True)],
)
def test_a_loss_that_learns_of_the_model_later(world2, sections, then, alike):
    theirs, ours, said = both(world2, replace(BASE, model="regularized"), sections["wave"], then)
    assert same(ours, theirs) is alike and ("step 2 does" in said or "step 3 does" in said) is not alike
    assert ("the loss looks through the model" in said) is not alike


def test_a_loss_beside_the_layers_of_1f1b_may_look(world2, sections):
    theirs, ours, said = both(world2, replace(BASE, model="regularized"), sections["stock"], given_parameters)
    assert same(ours, theirs) and "looks through" not in said


def test_what_a_loss_reaches():
    layer, loss = Plain(), Regularized()
    assert not held_by(loss)
    loss.penalized = [layer.lin.weight, torch.ones(2)]
    assert held_by(loss) == {id(layer.lin.weight)}
    assert held_by(lambda hidden: layer.lin(hidden)) == {id(layer)}
