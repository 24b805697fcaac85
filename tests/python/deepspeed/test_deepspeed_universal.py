# SPDX-License-Identifier: Apache-2.0
"""ds_to_universal carries optimizer state between placements, also where several ranks hold a layer."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch.distributed as dist
from ostinato.deepspeed.save import contents
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.shapes import placement_text, two_directions
from support.training import MICRO_BATCHES, Options, data_of, make_engine, trained_and_saved
from test_deepspeed_branches import K_2
from test_deepspeed_copies import X_OF_M_4
from test_deepspeed_sharded import M_2

ZERO_1 = {"zero_optimization": {"stage": 1}}
ALONE = Options(config=ZERO_1)
FROZEN = Options(model="changed", change="front_frozen", frozen_too=False, config=ZERO_1)
FRONT = Layout("front", (3,), (1, 0))  # of FROZEN, rank 1 has nothing to train
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))


def saved(options: Options, folder: str) -> list[float]:
    """Trains 3 steps and saves; the losses of 3 more."""
    engine, data = trained_and_saved(options, folder, 3, tag="three")
    return [engine.train_batch(data).item() for _ in range(3)]


def converted(folder: str) -> str:
    """What the converter, on rank 0, said against it."""
    from deepspeed.checkpoint import ds_to_universal

    if dist.get_rank() != 0:
        return ""
    paths = {"input_folder": f"{folder}/three", "output_folder": f"{folder}/three_universal"}
    workers = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    try:
        ds_to_universal.main(Namespace(**paths, **workers, strict=True, inject_missing_state=True))
    except ValueError as error:
        return str(error)
    return ""


def saved_and_converted(world, options: Options, folder: str) -> list[float]:
    losses = world.run(saved, options, folder)[0]
    assert not any(world.run(converted, folder))
    return losses


def loaded(options: Options, folder: str, again: str = "") -> list[float]:
    """The losses of 3 steps after loading. `again`: where to save after them."""
    engine = make_engine(replace(options, config={**options.config, "checkpoint": {"load_universal": True}}))
    engine.load_checkpoint(folder)
    data = data_of(engine, after=3)
    losses = [engine.train_batch(data).item() for _ in range(3)]
    if again:
        engine.save_checkpoint(again)
    return losses


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Sections by name."""
    folder = tmp_path_factory.mktemp("plans")
    x = placement_text("x", two_directions((5,), LAYERS))
    made = {
        "wave": make_plan(folder / "wave", WAVE, LAYERS, MICRO_BATCHES),
        "front": make_plan(folder / "front", FRONT, LAYERS, MICRO_BATCHES),
        "x": make_plan(folder / "x", Layout("x", (), ()), LAYERS, MICRO_BATCHES // 2, text=x),
        "m": make_plan(folder / "m", M_2, LAYERS, MICRO_BATCHES),
        "xm": make_plan(
            folder / "xm",
            Layout("xm", (), ()),
            LAYERS,
            MICRO_BATCHES // 2,
            text=placement_text("xm", X_OF_M_4),
        ),
        "k": make_plan(
            folder / "k", Layout("k", (), ()), LAYERS, MICRO_BATCHES, text=placement_text("k", K_2)
        ),
    }
    return {name: {"plan": str(plan)} for name, plan in made.items()}


@pytest.fixture(scope="module")
def deepspeeds(world2, tmp_path_factory):
    """(folder, losses) of what DeepSpeed alone has saved and gone on with."""
    folder = str(tmp_path_factory.mktemp("saved"))
    return folder, saved_and_converted(world2, ALONE, folder)


def test_state_of_deepspeed_under_a_moved_placement(world2, plans, deepspeeds):
    folder, expected = deepspeeds
    assert world2.run(loaded, replace(ALONE, section=plans["wave"]), folder)[0] == expected


def refused_rates(options: Options, folder: str) -> str:
    """Where the optimizer's first group has another rate on each rank, as with groups by layer."""
    engine = make_engine(replace(options, config={**options.config, "checkpoint": {"load_universal": True}}))
    engine.optimizer.param_groups[0]["lr"] = 0.01 * (1 + dist.get_rank())
    try:
        engine.load_checkpoint(folder)
    except RuntimeError as error:
        return str(error)
    return ""


def test_groups_that_differ_between_ranks_are_refused(world2, plans, deepspeeds):
    """DeepSpeed would give every rank the rates of one."""
    folder, _ = deepspeeds
    for said in world2.run(refused_rates, replace(ALONE, section=plans["wave"]), folder):
        assert said.startswith("the optimizer's group 0 has other options")


def test_state_of_deepspeed_in_two_directions(world2, plans, deepspeeds):
    folder, expected = deepspeeds
    assert world2.run(loaded, replace(ALONE, section=plans["x"]), folder)[0] == pytest.approx(
        expected, rel=1e-5
    )


def test_state_of_two_directions_under_deepspeed(world2, plans, tmp_path):
    """Each copy is named once. What it was made from may be removed in part, or be damaged."""
    expected = saved_and_converted(world2, replace(ALONE, section=plans["x"]), str(tmp_path))
    (tmp_path / "three/layer_02-model_states.pt").unlink()
    assert world2.run(loaded, replace(ALONE, section=plans["x"]), str(tmp_path))[0] == pytest.approx(expected)
    assert world2.run(loaded, ALONE, str(tmp_path))[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("model", "plan"), [("vocabulary", "m"), ("branches", "k")])
def test_state_of_deepspeed_in_sharded_stages_and_branches(world2, plans, tmp_path, model, plan):
    alone = replace(ALONE, model=model)
    expected = saved_and_converted(world2, alone, str(tmp_path))
    assert world2.run(loaded, replace(alone, section=plans[plan]), str(tmp_path))[0] == pytest.approx(
        expected, rel=1e-5
    )


def test_state_of_sharded_stages_under_deepspeed(world2, plans, tmp_path):
    """The first rank of a stage saves its parts put together; the run that saved them goes on from its own,
    all the same."""
    alone = Options(model="vocabulary", config=ZERO_1)
    ours = replace(alone, section=plans["m"])
    expected = saved_and_converted(world2, ours, str(tmp_path))
    assert world2.run(loaded, alone, str(tmp_path))[0] == pytest.approx(expected, rel=1e-5)
    assert world2.run(loaded, ours, str(tmp_path))[0] == expected


def test_state_of_sharded_stages_of_replicas(world4, plans, tmp_path):
    """Each has half of the state of each part."""
    alone = Options(model="vocabulary", config=ZERO_1 | {"bf16": {"enabled": True}})
    expected = saved_and_converted(world4, replace(alone, section=plans["m"]), str(tmp_path))
    assert world4.run(loaded, alone, str(tmp_path))[0] == pytest.approx(expected, rel=2e-2)


def test_state_of_parts_on_other_ranks_for_each_direction(world4, plans, tmp_path):
    alone = Options(model="vocabulary", stages=4, config=ZERO_1)
    expected = saved_and_converted(world4, replace(alone, section=plans["xm"]), str(tmp_path))
    assert world4.run(loaded, alone, str(tmp_path))[0] == pytest.approx(expected, rel=1e-5)


def test_a_rank_with_nothing_to_train(world4, plans, tmp_path):
    """In two replicas, of which the second has no share of what the rank's optimizer steps."""
    ours, folder, own = replace(FROZEN, section=plans["front"]), tmp_path / "alone", tmp_path / "own"
    expected = saved_and_converted(world4, FROZEN, str(folder))
    again = str(tmp_path / "again")
    assert world4.run(loaded, ours, str(folder), again)[0] == pytest.approx(expected, rel=1e-5)
    assert contents.read(contents.chosen(tmp_path / "again", None)).problems == []
    expected = saved_and_converted(world4, ours, str(own))
    assert not list(own.glob("*/zero/ostinato_idle"))
    for options in (FROZEN, ours):
        assert world4.run(loaded, options, str(own))[0] == pytest.approx(expected, rel=1e-5)
