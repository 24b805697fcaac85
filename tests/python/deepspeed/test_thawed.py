# SPDX-License-Identifier: Apache-2.0
"""Layers that a script thaws in mid-run learn from the next step on, as under DeepSpeed alone."""

from dataclasses import replace

import pytest
from support import changed_model
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text, without_block
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

FROZEN = 2  # layers, the first
LAYOUTS = {
    "looped": Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
    "wave": Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
    "stock": Layout("stock", (4,), (0, 1)),
}
BASE = Options(stages=2)


def thaw(engine, learn: bool) -> None:
    for name, parameter in engine.module.named_parameters():
        if name.split(".")[0] in map(str, range(FROZEN)):
            parameter.requires_grad_(learn)


def progressively(options: Options) -> dict:
    """Frozen for two steps, thawed for two, frozen, and thawed again."""
    engine = make_engine(options)
    data, losses = data_of(engine), []
    for learn in (False, True, False, True):
        thaw(engine, learn)
        losses += [engine.train_batch(data).item() for _ in range(2)]
    return {"losses": losses, "last": weights(engine)}


@pytest.mark.parametrize("layout", everyday(LAYOUTS, "looped"))
def test_thawed_layers_learn(world2, stock, tmp_path, layout):
    plan = make_plan(tmp_path, LAYOUTS[layout], LAYERS, MICRO_BATCHES)
    ours = world2.run(progressively, replace(BASE, section={"plan": str(plan)}))
    assert ours == stock(world2, BASE, progressively)


def thawed_without_backward(options: Options) -> str:
    engine = make_engine(options)
    data = data_of(engine)
    engine.train_batch(data)
    thaw(engine, True)
    try:
        engine.train_batch(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_thawed_stage_without_a_backward(world2, tmp_path):
    layout = LAYOUTS["looped"]
    text = without_block("s0.B", placement_text(layout, changed_model.LAYERS))
    plan = make_plan(tmp_path, layout, changed_model.LAYERS, MICRO_BATCHES, text=text)
    options = replace(BASE, section={"plan": str(plan)}, model="changed", change="front_frozen")
    for said in world2.run(thawed_without_backward, options):
        assert said.startswith(
            'Unsupported: stage "s0" has trainable parameters, but no backward in the plan'
        )
