# SPDX-License-Identifier: Apache-2.0
"""What a script does to layers between PipelineModule() and initialize() it does to what trains."""

import json
from dataclasses import replace

import pytest
import torch.distributed as dist
from support.changed_model import ADDED, DONE, LAYERS
from support.plans import Layout, make_plan
from support.training import (
    MICRO_BATCHES,
    Options,
    data_of,
    in_both_starts,
    make_engine,
    refusal,
    train,
    weights,
)

WAVE = Layout("wave", (2, 4, 6), (0, 1, 1, 0))
BASE = Options(model="changed", optimizer="SGD", steps=2)
GROUP = 6  # engines made in one world: each leaves threads behind


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return str(make_plan(tmp_path_factory.mktemp("plan"), WAVE, LAYERS, MICRO_BATCHES))


def trained(options: Options) -> dict:
    engine = make_engine(options)
    data, held_out = data_of(engine), data_of(engine, seed=99)
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    shapes: list = [None] * dist.get_world_size()
    tensors = [*engine.module.named_parameters(), *engine.module.named_buffers()]
    dist.all_gather_object(shapes, {name: (t.stride(), t.requires_grad) for name, t in tensors})
    return {
        "losses": losses,
        "evaluation": engine.eval_batch(held_out).item(),
        "last": weights(engine),
        "tensors": {name: facts for held in shapes for name, facts in held.items()},
    }


def changed(options: Options, names: list[str]) -> dict:
    return {name: trained(replace(options, change=name)) for name in names}


@pytest.mark.parametrize("first", range(0, len(DONE), GROUP))
def test_numbers_are_those_of_deepspeed_alone(world2, plan, first):
    """Which others are without the change."""
    names = list(DONE)[first : first + GROUP]
    unchanged = {name: "dropout" if name == "dropout_off" else "" for name in names}
    theirs = world2.run(changed, BASE, [*names, *set(unchanged.values())])[0]
    ours = world2.run(changed, replace(BASE, section={"plan": plan}), names)[0]
    assert not [name for name in names if theirs[name] == theirs[unchanged[name]]], (
        "the test shows nothing of these"
    )
    assert not [name for name in names if ours[name] != theirs[name]], "other numbers than DeepSpeed's"


def test_what_adds_something_changes_nothing(world2, plan):
    theirs = world2.run(changed, BASE, [""])[0][""]
    ours = world2.run(changed, replace(BASE, section={"plan": plan}), list(ADDED))[0]
    assert not [name for name in ADDED if ours[name] != theirs]


def test_layers_that_count_their_forwards(world2, stock, plan):
    """The forward before step 1 that counts random numbers is not one of them."""
    options = replace(BASE, change="counting")
    theirs, ours = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (ours["losses"], ours["evaluation"]) == (theirs["losses"], theirs["evaluation"])


def test_a_tuple_of_one_tensor(world2, stock, plan):
    """It is not the tensor itself: the next layer takes it apart."""
    options = replace(BASE, change="tuples")
    theirs, ours = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (ours["losses"], ours["evaluation"], ours["last"]) == (
        theirs["losses"],
        theirs["evaluation"],
        theirs["last"],
    )


def test_one_object_at_several_places(world2, plan):
    for message in world2.run(refusal, replace(BASE, change="one_object", section={"plan": plan})):
        assert (
            message.startswith("OstinatoError")
            and 'layers 1, 3 on a device other than 0 (they share tensors ("' in message
            and "TiedLayerSpec" in message
        )


def test_one_object_in_two_stages_of_a_rank(world2, tmp_path):
    """BatchNorm's statistics are those of the order in which the stages run."""
    cut = make_plan(tmp_path, Layout("cut", (2, 4), (0, 0, 1)), LAYERS, MICRO_BATCHES)
    for message in world2.run(refusal, replace(BASE, change="one_object", section={"plan": str(cut)})):
        assert "the placement has layers 1, 2, 3 in different stages (layers 1 and 3 share buffers" in message


def test_auto_measures_one_object_at_several_places(world2, tmp_path):
    section = {"auto": True, "search": {"time_limit": 1}, "output": str(tmp_path)}
    world2.run(in_both_starts, train, replace(BASE, change="one_object", section=section))
    profile = json.loads((tmp_path / "profile.json").read_text())
    rules = [(one["rule"], one["layers"], one.get("device")) for one in profile["restrictions"]]
    assert rules == [("together", [1, 3], 0), ("one_stage", [1, 2, 3], None), ("together", [5], 1)]
    assert [row["index"] for row in profile["layers"] if row.get("tied")] == [3, 5]


def test_one_object_on_both_ranks(world2, plan):
    """A model's embedding and head, say, each as an argument of a LayerSpec: each rank trains its own."""
    for message in world2.run(refusal, replace(BASE, change="borrowed_twice", section={"plan": plan})):
        assert (
            message.startswith("OstinatoError")
            and "the placement has layer 6 on a device other than 1" in message
        )


def stopped(options: Options) -> str:
    try:
        train(options)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("change", ["unregistered", "borrowed_once"])
def test_a_weight_of_a_layer_that_another_layer_has_not_registered(world2, tmp_path, change):
    apart = make_plan(tmp_path, Layout("looped", (1, 4, 6), (0, 1, 0, 1)), LAYERS, MICRO_BATCHES)
    told = world2.run(stopped, replace(BASE, change=change, section={"plan": str(apart)}))
    assert "the stage with layers 1, 2, 3 computes with a parameter (3" in told[1]
    assert ") of layer 0, which is not registered there" in told[1]


@pytest.mark.parametrize("change", ["front_frozen", "one_table", "no_layer's"])
def test_layers_move(world2, stock, plan, change):
    """front_frozen: a stage without a gradient to compute, frozen by the script after its layers were made.
    one_table: a module without parameters that several layers have been given, as rotary embeddings are. no_layer's:
    weights that are not registered anywhere."""
    options = replace(BASE, change=change)
    theirs, ours = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (ours["losses"], ours["evaluation"], ours["last"]) == (
        theirs["losses"],
        theirs["evaluation"],
        theirs["last"],
    )
