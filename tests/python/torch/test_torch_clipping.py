# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all ranks' gradients: each weight counts once, also where several ranks hold it."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
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


def in_type(plan: str, dtype: torch.dtype, norm_type: float | str) -> tuple[torch.Tensor, list[tuple]]:
    """The norm, and clipped gradients beside those that torch clips in one process. Rank 0's stage is frozen."""
    torch.manual_seed(0)
    made = [nn.Linear(8, 8, dtype=dtype).requires_grad_(index > 3) for index in range(8)]
    whole = nn.Sequential(*map(copy.deepcopy, made))
    pipe, x = Pipeline(plan, made, nn.functional.mse_loss), torch.randn(8, 8, dtype=dtype)
    pipe.step(x, x)
    for part in x.chunk(MICRO_BATCHES):
        (nn.functional.mse_loss(whole(part), part) / MICRO_BATCHES).backward()
    expected = nn.utils.clip_grad_norm_(whole.parameters(), 1e-3, norm_type)
    norm = pipe.clip_grad_norm_(1e-3, norm_type, error_if_nonfinite=True)
    torch.testing.assert_close(norm, expected)  # of the same type
    mine = list(pipe.parameters())
    layers_here = pipe.program.stages[dist.get_rank()].layers
    same = [p for index in layers_here for p in whole[index].parameters()]
    return norm, [(p.grad, q.grad) for p, q in zip(mine, same, strict=True) if q.grad is not None]


@pytest.mark.parametrize(
    "dtype, norm_type", [(torch.float64, 2), (torch.float64, "inf"), (torch.bfloat16, 2.0)]
)
def test_the_norm_has_the_type_and_precision_of_torch(dtype, norm_type, world2, tmp_path):
    results = world2.run(
        in_type, str(make_plan(tmp_path, LAYOUTS["stock"], 8, MICRO_BATCHES)), dtype, norm_type
    )
    assert results[0][0] == results[1][0] and not results[0][1] and results[1][1]
    for mine, expected in results[1][1]:
        tolerance = {"rtol": 1e-12, "atol": 0} if dtype == torch.float64 else {}
        torch.testing.assert_close(mine, expected, **tolerance)


def not_finite(plan: str) -> str:
    pipe, (tokens, _, targets) = Pipeline(plan, model(tied=False), loss), batch(0)
    pipe.step(tokens, targets)
    if dist.get_rank() == 0:
        next(pipe.parameters()).grad.fill_(math.inf)
    with pytest.raises(PipelineError) as refused:
        pipe.clip_grad_norm_(1.0, error_if_nonfinite=True)
    return str(refused.value)


def test_a_norm_that_is_not_finite_is_refused_on_every_rank(world2, tmp_path):
    for said in world2.run(not_finite, str(make_plan(tmp_path, LAYOUTS["stock"], 8, MICRO_BATCHES))):
        assert "the norm of the gradients is inf" in said


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
