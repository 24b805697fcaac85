# SPDX-License-Identifier: Apache-2.0
"""Models with branches (K: several inputs and outputs per stage, skip edges) behind DeepSpeed's engine."""

from dataclasses import replace

import pytest
from ostinato.deepspeed import OstinatoError, graph
from support import training
from support.branch_model import LAYERS
from support.plans import Layout, make_plan
from support.shapes import Stage, placement_text
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, refusal, train
from torch import nn

BRANCHES_2 = Options(model="branches", optimizer="SGD", steps=10)
BRANCHES_4 = replace(BRANCHES_2, stages=4)
K_2 = [Stage("text", 0, 3, (0,)), Stage("image", 3, 5, (1,)), Stage("both", 5, 8, (0,), ("text", "image"))]
K_4 = [
    Stage("text", 0, 2, (0,)),
    Stage("more", 2, 3, (1,), ("text",)),
    Stage("image", 3, 5, (2,)),
    Stage("both", 5, 7, (3,), ("more", "image", "text")),
    Stage("head", 7, 8, (0,), ("both",)),
]
# As Tessel draws it: the branches meet in a stage on all devices.
K_SHARDED_4 = [
    Stage("text", 0, 2, (0,)),
    Stage("more", 2, 3, (1,), ("text",)),
    Stage("image", 3, 4, (2,)),
    Stage("image1", 4, 5, (3,), ("image",)),
    Stage("both", 5, 7, (1,), ("more", "image1", "text")),
    Stage("head", 7, 8, (0, 1, 2, 3), ("both",)),
]
CHAIN_2 = [Stage("front", 0, 4, (1,)), Stage("back", 4, 8, (0,), ("front",))]


def plan_of(folder, stages, split=False) -> dict:
    text = placement_text("k", stages, split)
    return {"plan": str(make_plan(folder, Layout("k", (), ()), LAYERS, MICRO_BATCHES, "auto", text))}


ZERO_1 = {"zero_optimization": {"stage": 1}}
CASES = {
    "branches": (K_2, False, BRANCHES_2),
    "split-zero1": (K_2, True, replace(BRANCHES_2, config=ZERO_1)),
    "tied": (K_2, False, replace(BRANCHES_2, tied=True)),
}
CASES_4 = {
    "branches": (K_4, False, BRANCHES_4),
    "split-adam": (K_4, True, replace(BRANCHES_4, optimizer="Adam")),
    "data-parallel-zero1": (K_2, False, replace(BRANCHES_2, config=ZERO_1)),
    "tied-split-zero1": (K_4, True, replace(BRANCHES_4, tied=True, config=ZERO_1)),
}


@pytest.mark.parametrize("case", everyday(CASES, "split-zero1"))
def test_two_ranks(case, world2, stock, tmp_path):
    compare(world2, stock, *CASES[case], tmp_path)


@pytest.mark.parametrize("case", everyday(CASES_4, "tied-split-zero1"))
def test_four_ranks(case, world4, stock, tmp_path):
    compare(world4, stock, *CASES_4[case], tmp_path)


def compare(world, stock, stages, split, options, folder):
    """Equal from run to run; against the same layers in DeepSpeed's chain, where what a later layer reads
    rides along and each of several outputs has a backward of its own, but for the order of sums."""
    ours = replace(options, section=plan_of(folder, stages, split))
    expected, got, again = stock(world, options)[0], *(world.run(train, ours)[0] for _ in range(2))
    assert got["losses"] == again["losses"] and got["last"] == again["last"]
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got["losses"][-1] < got["losses"][0]
    assert got["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    training.close(got["last"], expected["last"], 1e-5 if options.optimizer == "SGD" else 1e-3)


@pytest.mark.parametrize("tied", everyday([False, True], True))
def test_a_chain_of_them_is_a_chain(world2, stock, tmp_path, tied):
    """Cut where DeepSpeed cuts it, where two tensors cross: equal bit for bit."""
    alone = replace(BRANCHES_2, tied=tied)
    ours = replace(alone, section=plan_of(tmp_path, CHAIN_2))
    expected, got = stock(world2, alone)[0], world2.run(train, ours)[0]
    assert (got["losses"], got["last"], got["evaluation"]) == (
        expected["losses"],
        expected["last"],
        expected["evaluation"],
    )


def saved(options: Options, folder: str) -> dict[str, bytes]:
    return training.weights(training.trained_and_saved(options, folder, 1, tag="one")[0])


def loaded(options: Options, folder: str) -> dict[str, bytes]:
    engine = training.make_engine(options)
    engine.load_checkpoint(folder, tag="one", load_optimizer_states=False)
    return training.weights(engine)


def test_tied_layers_are_written_once(world2, tmp_path):
    """By whoever runs the first of them; DeepSpeed alone and a plan that has them elsewhere read them."""
    alone = replace(BRANCHES_2, tied=True)
    written = world2.run(saved, replace(alone, section=plan_of(tmp_path / "k", K_2)), str(tmp_path))
    layers = [path.name for path in sorted((tmp_path / "one").glob("layer_*"))]
    assert layers == [f"layer_{i:02d}-model_states.pt" for i in range(LAYERS) if i not in (3, 7)]
    for reader in (alone, replace(alone, section=plan_of(tmp_path / "chain", CHAIN_2))):
        assert world2.run(loaded, reader, str(tmp_path)) == written


def test_branches_that_meet_in_a_stage_on_all_devices(world4, stock, tmp_path):
    expected = stock(world4, BRANCHES_4)[0]
    ours = replace(BRANCHES_4, section=plan_of(tmp_path, K_SHARDED_4))
    got, again = world4.run(train, ours), world4.run(train, ours)
    assert got[0]["losses"] == again[0]["losses"] == got[3]["losses"]
    assert got[0]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got[0]["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)


def test_edges_that_the_model_does_not_have(world2, tmp_path):
    wrong = [K_2[0], replace(K_2[1], inputs=("text",)), K_2[2]]
    for message in world2.run(refusal, replace(BRANCHES_2, section=plan_of(tmp_path, wrong))):
        assert 'stage "image" takes the outputs of text, but its layers read those of no stage' in message, (
            message
        )


def test_a_plain_chain_has_no_branches(world2, tmp_path):
    section = plan_of(tmp_path, [replace(K_2[0], end=3), replace(K_2[1], end=5), K_2[2]])
    for message in world2.run(refusal, Options(section=section)):
        assert 'stage "image" does not take just the output of the stage before it' in message
        assert "ostinato.deepspeed.graph()" in message


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({"a": (nn.Identity(), "b")}, 'layer "a" reads "b", which is neither an input nor an earlier layer'),
        ({"x": (nn.Identity(), "x")}, '"x" is already the name of an input'),
        ({"a": (nn.Identity(), "x"), "b": (nn.Identity(), "x")}, 'no layer reads layer "a"'),
        ({"a": (nn.Identity(),)}, 'layer "a" reads nothing'),
    ],
)
def test_graphs_that_are_wrong(layers, words):
    with pytest.raises(OstinatoError, match=words):
        graph(layers, ("x",))
