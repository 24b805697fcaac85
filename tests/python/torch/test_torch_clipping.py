# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all ranks' gradients: each weight counts once, also where several ranks hold it."""

import math

import pytest
from support.plans import Layout, make_plan
from support.torch_jobs import MICRO_BATCHES, batch, chain, loss
from torch import nn

from ostinato.torch import Pipeline, PipelineError, layers

ALL = (0, 1)
LAYOUTS = {
    "stock": Layout("stock", (4,), (0, 1)),
    "wave": Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
    "sharded": Layout("m", (1, 3, 6), (ALL, 0, 1, ALL)),
}


def model(tied: bool) -> list[nn.Module]:
    made = chain()
    if tied:
        made[-1].weight = made[0].weight
    return made


def alone(tied: bool, norm_type: float) -> float:
    made, (tokens, _, targets) = nn.Sequential(*model(tied)), batch(0)
    for x, y in zip(tokens.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True):
        (loss(made(x), y) / MICRO_BATCHES).backward()
    return nn.utils.clip_grad_norm_(made.parameters(), 0.01, norm_type).item()


def clipped(plan: str, tied: bool, norm_type: float) -> tuple[float, float, float]:
    """The norm before and after, and by how much gradients were scaled unequally."""
    pipe, (tokens, _, targets) = Pipeline(plan, model(tied), loss), batch(0)
    pipe.step(tokens, targets)
    before = [p.grad.clone() for p in pipe.parameters()]
    norm = pipe.clip_grad_norm_(0.01, norm_type)
    factor = 0.01 / (norm + 1e-6)
    off = max(
        (p.grad - factor * g).abs().max().item() for p, g in zip(pipe.parameters(), before, strict=True)
    )
    return norm.item(), pipe.clip_grad_norm_(math.inf, norm_type).item(), off


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("layout", ["stock", "wave", "sharded", "tied"])
def test_the_norm_is_that_of_one_process(layout, norm_type, world2, tmp_path):
    tied = layout == "tied"
    plan = str(make_plan(tmp_path, LAYOUTS["stock" if tied else layout], 8, MICRO_BATCHES))
    expected = pytest.approx(alone(tied, norm_type), rel=1e-5)
    for norm, after, off in world2.run(clipped, plan, tied, norm_type):
        assert norm == expected and after == pytest.approx(0.01, rel=1e-3) and off < 1e-8


def refusal(plan: str) -> str:
    build = layers(model(tied=False))
    with pytest.raises(PipelineError) as refused:
        Pipeline(plan, lambda stage: nn.Sequential(build(stage)), loss).clip_grad_norm_(1.0)
    return str(refused.value)


def test_modules_of_the_user_that_are_sharded_are_refused(world2, tmp_path):
    for said in world2.run(refusal, str(make_plan(tmp_path, LAYOUTS["sharded"], 8, MICRO_BATCHES))):
        assert (
            "is sharded, and which of its weights other ranks hold, too, only your own module knows" in said
        )
