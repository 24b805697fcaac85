# SPDX-License-Identifier: Apache-2.0
"""Weights that a script draws between model and engine, on the rank that holds the layer: the second start trains
from those of the first, and draws what comes after them."""

import io
import random
import re
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.place import first_weights
from ostinato.deepspeed.randomness import random_state
from ostinato.ranks import again
from support import training
from support.plans import Layout, make_plan
from support.random_model import LAYERS, WIDTH, Dropping, layers_of, micro_batches
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, in_both_starts

DROPS = Options(model="random", changed=((2, Dropping), (5, Dropping)), steps=3)
LAYOUTS = {
    "wave": Layout("wave", (2, 4, 6), (0, 1, 1, 0)),
    "turned": Layout("turned", (4,), (1, 0)),
    "stock": Layout("stock", (4,), (0, 1)),
    "sharded": Layout("sharded", (1, 4), ((0, 1), 0, 1)),
}
ZERO_1, BF16 = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
SAID = r"ostinato: trainable weights of (\d) layers? differed from those of the first start, "


def redraw(model, how: str) -> None:
    """In place of what a script does to its layers. "drawn": as the rank goes; "seedless": different in each
    start; "frozen": as the rank goes, in half of the layers, and the rest are frozen."""
    if how == "seedless":
        torch.manual_seed(redraw.starts)
        redraw.starts += 1
    for name, parameter in model.named_parameters():
        if how == "frozen" and int(name[0]) % 2:
            parameter.requires_grad_(False)
        elif how:
            parameter.data.normal_(0, 0.2)


@contextmanager
def redrawing(limit: int = first_weights.LIMIT):
    theirs = training.changed_model.change, first_weights.LIMIT
    training.changed_model.change, first_weights.LIMIT, redraw.starts = redraw, limit, 3
    try:
        yield
    finally:
        training.changed_model.change, first_weights.LIMIT = theirs


def trained(options: Options, limit: int = first_weights.LIMIT) -> dict:
    printed = io.StringIO()
    with redrawing(limit), redirect_stdout(printed):
        made = in_both_starts(training._train, options)
    return made | {"said": printed.getvalue()}


CASES = {
    "drawn": ("wave", replace(DROPS, change="drawn")),
    "turned": ("turned", replace(DROPS, change="drawn")),
    "bf16": ("wave", replace(DROPS, model="mixed", changed=(), change="drawn", config=BF16 | ZERO_1)),
    "own optimizer": ("wave", replace(DROPS, change="drawn", own_optimizer=True)),
    "frozen": ("wave", replace(DROPS, change="frozen")),
    "seedless": ("wave", replace(DROPS, change="seedless")),
    "seedless, nothing moves": ("stock", replace(DROPS, change="seedless")),
}


@pytest.mark.parametrize("case", everyday(CASES, "frozen", "bf16", "seedless"))
def test_the_second_start_trains_from_those_of_the_first(case, world2, stock, tmp_path):
    name, options = CASES[case]
    plan = make_plan(tmp_path, LAYOUTS[name], LAYERS, MICRO_BATCHES)
    theirs = stock(world2, options, trained)
    ours = world2.run(trained, replace(options, section={"plan": str(plan), "check": 1}))
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        same = ("random_state", "first", "losses", "last", "evaluation")
        assert {key: mine[key] for key in same} == {key: other[key] for key in same}, rank
    assert re.search(SAID, ours[0]["said"]) and "first start, as" not in ours[1]["said"], ours[0]["said"]


def in_turns(options: Options) -> list:
    """What two engines train that take turns, as those of a GAN."""
    engines = [training.make_engine(options) for _ in range(2)]
    data = [training.data_of(engine, seed) for seed, engine in enumerate(engines)]
    losses = [engine.train_batch(each).item() for engine, each in zip(engines, data, strict=True)]
    return [losses, *map(training.weights, engines)]


def redrawn(job, *args) -> tuple:
    """What the job returns in its last start, and what was printed in both."""
    printed = io.StringIO()
    with redrawing(), redirect_stdout(printed):
        return in_both_starts(job, *args), printed.getvalue()


def test_each_model_of_a_script_trains_from_its_first_weights(world2, tmp_path):
    plan = make_plan(tmp_path, LAYOUTS["wave"], LAYERS, MICRO_BATCHES)
    options = replace(DROPS, change="seedless")
    ours = world2.run(redrawn, in_turns, replace(options, section={"plan": str(plan), "check": 1}))
    theirs = world2.run(redrawn, in_turns, options)
    assert [made for made, _ in ours] == [made for made, _ in theirs]
    said = ours[0][1]
    assert said.count("measured: step 1") == said.count("those of this engine are not compared") == 1, said


def beside_another(options: Options, more: bool) -> tuple:
    """What an engine trains in a script that makes a second model before it in one of its two starts."""
    asked, second = options.section is not None, again.folder_of_first_start() is not None
    if asked and second == more:
        training.make_engine(options)
    engine = training.make_engine(options)
    loss = engine.train_batch(training.data_of(engine)).item()
    return loss, training.weights(engine)


@pytest.mark.parametrize("more", [False, True])
def test_a_second_start_with_fewer_or_more_models(world2, tmp_path, more):
    """A model is told by where the script makes it."""
    plan = make_plan(tmp_path, LAYOUTS["wave"], LAYERS, MICRO_BATCHES)
    options = replace(DROPS, change="drawn")
    asked = replace(options, section={"plan": str(plan), "check": 1})
    theirs = world2.run(redrawn, beside_another, options, more)
    ours = world2.run(redrawn, beside_another, asked, more)
    assert [made for made, _ in ours] == [made for made, _ in theirs]
    assert "equal DeepSpeed's 1F1B bit for bit" in ours[0][1]


@pytest.mark.slow  # test_the_second_start_trains_from_those_of_the_first has one pipeline
def test_replicas(world4, stock, tmp_path):
    options = replace(DROPS, change="drawn", config=ZERO_1)
    plan = make_plan(tmp_path, LAYOUTS["wave"], LAYERS, MICRO_BATCHES)
    theirs = stock(world4, options, trained)
    ours = world4.run(trained, replace(options, section={"plan": str(plan), "check": 1}))
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]
    assert [rank["last"] for rank in ours] == [rank["last"] for rank in theirs]


@pytest.mark.parametrize("case", everyday(["", "large", "sharded"], "large"))
def test_what_is_left_as_it_is_drawn(case, world2, tmp_path):
    """Where nothing differs, where weights are too large to be kept, and in a stage of which a rank has a part."""
    layout = LAYOUTS["sharded" if case == "sharded" else "wave"]
    section = {"plan": str(make_plan(tmp_path, layout, LAYERS, MICRO_BATCHES)), "check": 1, "require": False}
    options = replace(DROPS, change="drawn" if case else "", section=section, steps=1)
    if case == "sharded":
        options = replace(options, model="vocabulary", changed=(), change="seedless")
    said = world2.run(trained, options, 100 if case == "large" else first_weights.LIMIT)[0]["said"]
    found = re.search(SAID, said)
    assert ("step 1 differs" in said) == bool(case), said
    assert (found and found[1]) == ("7" if case == "sharded" else None), said  # all but the embedding


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, outputs, targets):
        return ((outputs - targets) * self.weight).square().mean()


class WithLoss:
    layers_of, micro_batches = staticmethod(layers_of), staticmethod(micro_batches)

    @property
    def loss(self):
        return Weighted()


training.MODELS["with a loss that learns"] = WithLoss()


def losses(options: Options) -> list[float]:
    training.weights, kept = lambda _: {}, training.weights  # the loss functions of ranks may differ
    try:
        return trained(options)["losses"]
    finally:
        training.weights = kept


def test_a_loss_that_learns_and_moves(world2, tmp_path):
    """The rank that computes it has the weights of the one that did under 1F1B. Those of the ranks without a loss
    are compared, too, and differ."""
    options = replace(DROPS, model="with a loss that learns", change="drawn", changed=())
    plan = make_plan(tmp_path, LAYOUTS["turned"], LAYERS, MICRO_BATCHES)
    section = {"plan": str(plan), "check": 1, "require": False}
    theirs = world2.run(losses, options)
    assert world2.run(losses, replace(options, section=section)) == theirs


def no_room(folder: str) -> tuple:
    states = random_state.states()
    first = first_weights.First({"0.weight": torch.ones(2)}, states)
    first.write(Path(folder) / "missing" / "weights.pt")
    first.write(file := Path(folder) / f"{dist.get_rank()}.pt")
    restored = first_weights.read(file)
    torch.rand(1), random.random(), numpy.random.rand()
    random_state.become(restored.states)
    same = all(map(random_state.same, states, random_state.states()))
    return same, restored.weights["0.weight"].tolist(), file.exists(), first_weights.read(file)


def test_a_file_is_read_once_and_may_be_missing(world2, tmp_path):
    assert world2.run(no_room, str(tmp_path)) == [(True, [1.0, 1.0], False, None)] * 2
