# SPDX-License-Identifier: Apache-2.0
"""Data types, numbers of ranks, features and schedules, each with each: bit for bit, or a difference that
rank 0 announced, within a bound.

The tests run a slice for a few steps; OSTINATO_SOAK_MATRIX=all runs everything for 200 (script/soak matrix).
"""

import io
import os
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from support import models
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, MODELS, Options, data_of, make_engine, weights
from test_deepspeed_features import fp16_on_a_processor
from torch import nn

WHOLE = os.environ.get("OSTINATO_SOAK_MATRIX") == "all"
STEPS = 200 if WHOLE else 6
BOUND = 0.02  # of losses that are announced to differ by rounding, relative to the loss, at any of the steps

TYPES = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 16, "hysteresis": 1, "loss_scale_window": 20}},
}
FEATURES = {
    "plain": Options(),
    "tied": Options(tied=True),
    "checkpointing": Options(checkpoint_interval=1, checkpointable=("Block",)),
    "clipping": Options(config={"gradient_clipping": 0.3}),
    "ZeRO-1": Options(config={"zero_optimization": {"stage": 1}}),
    "dropout": Options(model="dropping"),
    "replicas": Options(stages=2),
}


def layouts(stages: int) -> list[Layout]:
    """One chunk a rank and two: in turn, there and back, and in turn with backwards in two halves."""
    forward, size = tuple(range(stages)), LAYERS // stages
    one, two = tuple(range(size, LAYERS, size)), tuple(range(size // 2, LAYERS, size // 2))
    return [
        Layout("v", one, forward),
        Layout("looped", two, forward * 2),
        Layout("wave", two, forward + forward[::-1]),
        Layout("split", two, forward * 2, split=True),
    ]


class Dropping(models.Block):
    def forward(self, hidden):
        return nn.functional.dropout(super().forward(hidden), 0.2, self.training)


class DroppingModel:
    """models, with dropout in its blocks."""

    loss, micro_batches = staticmethod(models.loss), staticmethod(models.micro_batches)

    @staticmethod
    def layers_of(options: Options) -> list:
        from deepspeed.pipe import LayerSpec

        made = models.layers_of(options)
        return [
            LayerSpec(Dropping) if getattr(layer, "typename", None) is models.Block else layer
            for layer in made
        ]


MODELS["dropping"] = DroppingModel
NAMES = [layout.name for layout in layouts(2)]
ALL = [
    (kind, ranks, feature, name)
    for ranks in (2, 4)
    for kind in TYPES
    for feature in FEATURES
    for name in NAMES
    if (feature, ranks) != ("replicas", 2)
]
SLICE = [  # each type, feature and schedule a few times; fp16 every day, the rest of which test_deepspeed_training.py has
    (kind, 4 if feature == "replicas" else 2, feature, NAMES[(k + f) % 4])
    for k, kind in enumerate(TYPES) for f, feature in enumerate(FEATURES) if (k + f) % 3 == 0
]  # fmt: skip


def trained(options: Options, steps: int) -> dict:
    printed = io.StringIO()
    with redirect_stdout(printed), fp16_on_a_processor():
        engine = make_engine(options)
        data = data_of(engine)
        losses = [engine.train_batch(data).item() for _ in range(steps)]
    said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return {
        "losses": losses,
        "weights": weights(engine),
        "scale": getattr(engine.optimizer, "cur_scale", None),
        "said": said,
    }


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        (stages, layout.name): str(
            make_plan(folder / f"{layout.name}-{stages}", layout, LAYERS, MICRO_BATCHES)
        )
        for stages in (2, 4)
        for layout in layouts(stages)
    }


def announced_as_equal(ours: list[dict]) -> bool:
    said = [line for line in ours[0]["said"] if "1F1B" in line]
    late = [line for of_rank in ours for line in of_rank["said"] if "does what step 1 did not" in line]
    assert said, "nothing is said about equality"
    return "bit for bit" in said[-1] and not late


@pytest.mark.parametrize(
    ("kind", "ranks", "feature", "name"),
    ALL if WHOLE else everyday(SLICE, *(case for case in SLICE if case[0] == "fp16")),
)
def test_bit_for_bit_or_as_announced(worlds, stock, plans, kind, ranks, feature, name):
    of_feature = FEATURES[feature]
    stages = 2 if feature == "replicas" else ranks
    options = replace(of_feature, stages=stages, optimizer="SGD", config={**TYPES[kind], **of_feature.config})
    theirs = stock(worlds[ranks], options, trained, STEPS)
    ours = worlds[ranks].run(trained, replace(options, section={"plan": plans[stages, name]}), STEPS)
    if announced_as_equal(ours):
        for mine, of_stock in zip(ours, theirs, strict=True):
            assert {key: mine[key] for key in ("losses", "weights", "scale")} == {
                key: of_stock[key] for key in ("losses", "weights", "scale")
            }
    else:
        off = [
            abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours[0]["losses"], theirs[0]["losses"], strict=True)
        ]
        print(
            f"{kind}, {ranks} ranks, {feature}, {name}: losses differ by {max(off):.1e} at most, as announced: {ours[0]['said'][-1]}"
        )
        assert max(off) <= BOUND
