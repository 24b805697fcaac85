# SPDX-License-Identifier: Apache-2.0
"""A plan trains what DeepSpeed's own 1F1B trains: losses, weights and evaluations are equal bit for bit."""

from dataclasses import replace

import ostinato
import pytest
from ostinato.groups import later_than
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, train, train_over_links

STOCK_2 = Layout("stock", (4,), (0, 1))
UNEVEN_2 = Layout("uneven", (5,), (0, 1))
SWAPPED_2 = Layout("swapped", (4,), (1, 0))
LOOPED_2 = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
WAVE_2 = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
LOOPED_4 = Layout("looped", (1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 0, 1, 2, 3))
WAVE_4 = Layout("wave", (1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 3, 2, 1, 0))
MIXED_4 = Layout("mixed", (1, 3, 4, 6, 7), (2, 0, 3, 1, 2, 0))

ZB_H1_2 = Layout("zb-h1", (5,), (0, 1), split=True, method="zb-h1")
ZB_H1_4 = Layout("zb-h1", (2, 4, 6), (0, 1, 2, 3), split=True, method="zb-h1")
ZB_V_4 = Layout("zb-v", (1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 3, 2, 1, 0), split=True, method="zb-v")
SPLIT_2 = Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True)

ADAM_2 = Options(stages=2)
ADAM_4 = Options(stages=4)
ZERO_1 = {"zero_optimization": {"stage": 1}}
BF16 = {"bf16": {"enabled": True}}

TWO_RANKS = {
    "stock": (STOCK_2, ADAM_2),
    "uneven-sgd": (UNEVEN_2, replace(ADAM_2, optimizer="SGD")),
    "swapped": (SWAPPED_2, ADAM_2),
    "looped": (LOOPED_2, ADAM_2),
    "wave": (WAVE_2, ADAM_2),
    "wave-clipped": (WAVE_2, replace(ADAM_2, optimizer="SGD", config={"gradient_clipping": 0.1})),
    "looped-tied-clipped": (LOOPED_2, replace(ADAM_2, tied=True, config={"gradient_clipping": 0.1})),
    "wave-zero1": (WAVE_2, replace(ADAM_2, config=ZERO_1)),
    "looped-bf16": (LOOPED_2, replace(ADAM_2, config=BF16)),
    "wave-bf16-zero1": (WAVE_2, replace(ADAM_2, config=BF16 | ZERO_1)),
    "looped-tied": (LOOPED_2, replace(ADAM_2, tied=True)),
    "looped-own-optimizer": (LOOPED_2, replace(ADAM_2, own_optimizer=True)),
    "wave-checkpointed": (
        WAVE_2,
        replace(
            ADAM_2, checkpoint_interval=1, seed_layers=True, config={"pipeline": {"use_reentrant": False}}
        ),
    ),
    "zb-h1": (ZB_H1_2, ADAM_2),
    "split-looped-sgd-clipped": (
        SPLIT_2,
        replace(ADAM_2, optimizer="SGD", config={"gradient_clipping": 0.1}),
    ),
    "split-looped-zero1": (SPLIT_2, replace(ADAM_2, config=ZERO_1)),
    "split-looped-bf16": (SPLIT_2, replace(ADAM_2, config=BF16)),
    "zb-h1-bf16-zero1": (ZB_H1_2, replace(ADAM_2, config=BF16 | ZERO_1)),
    "split-tied": (SPLIT_2, replace(ADAM_2, tied=True)),
    "split-checkpointed": (
        SPLIT_2,
        replace(
            ADAM_2, checkpoint_interval=1, seed_layers=True, config={"pipeline": {"use_reentrant": False}}
        ),
    ),
    "split-reentrant": (
        SPLIT_2,
        replace(ADAM_2, checkpoint_interval=1, checkpointable=("Block",), seed_layers=True),
    ),
}
FOUR_RANKS = {
    "looped": (LOOPED_4, ADAM_4),
    "wave": (WAVE_4, ADAM_4),
    "mixed-tied": (MIXED_4, replace(ADAM_4, tied=True)),
    "wave-sgd-zero1": (WAVE_4, replace(ADAM_4, optimizer="SGD", config=ZERO_1)),
    "wave-clipped": (WAVE_4, replace(ADAM_4, config={"gradient_clipping": 0.1})),
    "data-parallel-wave": (WAVE_2, ADAM_2),
    "zb-h1": (ZB_H1_4, ADAM_4),
    "zb-v": (ZB_V_4, ADAM_4),
    "data-parallel-split-looped": (SPLIT_2, ADAM_2),
    "data-parallel-looped-zero1": (LOOPED_2, replace(ADAM_2, config=ZERO_1)),
}


# Each placement, numerics and feature once.
MIXED = (
    "looped-tied-clipped",
    "looped-own-optimizer",
    "wave-bf16-zero1",
    "wave-checkpointed",
    "split-reentrant",
)
MIXED_ON_4 = ("mixed-tied", "data-parallel-looped-zero1")


@pytest.mark.parametrize("case", everyday(TWO_RANKS, *MIXED))
def test_two_ranks(case, world2, stock, tmp_path):
    compare(world2, stock, *TWO_RANKS[case], tmp_path)


@pytest.mark.parametrize("case", everyday(FOUR_RANKS, *MIXED_ON_4))
def test_four_ranks(case, world4, stock, tmp_path):
    compare(world4, stock, *FOUR_RANKS[case], tmp_path)


def test_over_a_group_for_each_direction(world4, stock, tmp_path):
    """Two pipelines of two ranks: each rank makes the groups of both."""
    got = compare(world4, stock, SPLIT_2, ADAM_2, tmp_path, train_over_links)
    for ours in got:
        assert ours["pairs"] == [(0, 2), (0, 2), (1, 3), (1, 3)]
        assert ours["limits"] == {later_than(ours["world"]).total_seconds()}  # the executor gives up earlier


@pytest.mark.parametrize("shape", everyday(["v", "wave"], "wave"))
def test_named_shapes_share_the_layers_of_a_model(shape, world2, stock, tmp_path):
    """`ostinato placement SHAPE --layers N` runs without [[stages]] written by hand."""
    compare(
        world2, stock, WAVE_2, ADAM_2, tmp_path, text=ostinato.placement(shape, devices=2, layers=LAYERS).text
    )


def compare(world, stock, layout, options, folder, job=train, text=""):
    plan = make_plan(folder, layout, LAYERS, MICRO_BATCHES, text=text)
    expected = stock(world, options)
    got = world.run(job, replace(options, section={"plan": str(plan)}))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours["kind"] == "PlanEngine" and theirs["kind"] == "DeepSpeedEngine"
        assert ours["losses"] == theirs["losses"]
        assert ours["losses"][-1] < ours["losses"][0]
        assert ours["evaluation"] == theirs["evaluation"]
        assert ours["random_state"] == theirs["random_state"]
        for weights in ("first", "last"):
            assert ours[weights].keys() == theirs[weights].keys()
            differing = [name for name, value in theirs[weights].items() if ours[weights][name] != value]
            assert not differing, f"{weights} weights differ from DeepSpeed's: {differing}"
        assert ours["first"] != ours["last"]
    return got
