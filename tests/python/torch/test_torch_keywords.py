# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of step() and infer(), which reach every stage without passing through those before it."""

import pytest
import torch
import torch.distributed as dist
from support.plans import Layout, make_plan, placement_text
from support.torch_jobs import MICRO_BATCHES
from torch import nn

from ostinato.torch import BatchError, Pipeline, PipelineError, layers
from ostinato.torch.outside import Outside

BATCH, WIDTH = 3, 16
ONE = Layout("one", (), (0,))
LAYOUTS = {
    "stock": Layout("stock", (4,), (0, 1)),
    "looped": Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
    "split": Layout("split", (2, 4, 6), (0, 1, 1, 0), split=True),
    "sharded": Layout("sharded", (2, 4, 6), ((0, 1), 0, 1, (0, 1))),
}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def sharded(self, shard):
        return self  # whole on each rank

    def forward(self, x, scale, *, flips=False, pair=None):
        out = self.linear(x) * scale
        out = out if pair is None else out + pair["up"] - 2 * pair["down"]
        return -out if flips else out


class Plain(nn.Linear):
    """Takes no keyword."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def sharded(self, shard):
        return self


class Through(nn.Module):
    """Takes any."""

    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def forward(self, *inputs, **keywords):
        return torch.tanh(self.inner(*inputs, **keywords))


def chain() -> list[nn.Module]:
    torch.manual_seed(3)
    return [kind() for kind in (Scaled, Plain, Through, Plain, Scaled, Through, Plain, Scaled)]


def given() -> tuple[torch.Tensor, torch.Tensor, nn.Linear, torch.Tensor]:
    """Inputs, targets, a module outside, and what it makes of something into a keyword argument."""
    torch.manual_seed(4)
    outer = nn.Linear(5, WIDTH)
    x, y, z = (torch.randn(MICRO_BATCHES * BATCH, width) for width in (WIDTH, WIDTH, 5))
    return x, y, outer, outer(z)


def error(outputs, targets):
    return (outputs - targets).square().mean()


def run(model: list[nn.Module], x: torch.Tensor, **keywords) -> torch.Tensor:
    for layer in model:
        x = layer(x) if isinstance(layer, Plain) else layer(x, **keywords)
    return x


def alone() -> tuple[list, float]:
    """The gradients of the layers and of the module outside, and the loss."""
    model, (x, y, outer, scale) = chain(), given()
    total = 0.0
    for part, target, scales in zip(*(t.chunk(MICRO_BATCHES) for t in (x, y, scale)), strict=True):
        value = error(run(model, part, scale=scales, flips=True), target) / MICRO_BATCHES
        value.backward(retain_graph=True)
        total += value.item()
    return [p.grad for layer in [*model, outer] for p in layer.parameters()], total


def through_the_pipeline(plan: str) -> tuple[dict, list, float | None]:
    """By layer its gradients; those of the module outside; the loss."""
    model, (x, y, outer, scale) = chain(), given()
    pipe, losses = Pipeline(plan, model, loss_fn=error), []
    before = pipe.infer(x, scale=scale, flips=True)
    value = pipe.step(x, y, losses, scale=scale, flips=True)
    after = pipe.infer(x, scale=scale, flips=True)
    assert (before is None) == (after is None) == (value is None) == (not losses)
    if value is not None:  # forwards alone give what was scored
        assert torch.stack(losses).mean() == value
        for early, late, target, loss in zip(before, after, y.chunk(MICRO_BATCHES), losses, strict=True):
            assert torch.equal(early, late) and error(early, target) == loss and not late.requires_grad
    grads = {
        index: [p.grad for p in layer.parameters()]
        for index, layer in enumerate(model)
        if next(layer.parameters()).grad is not None
    }
    return grads, [p.grad for p in outer.parameters()], None if value is None else value.item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_stage_gets_those_that_its_layers_take(layout, world2, tmp_path):
    plan = str(make_plan(tmp_path, LAYOUTS[layout], 8, MICRO_BATCHES))
    expected, total = alone()
    results = world2.run(through_the_pipeline, plan)
    grads = [g for _, of_layer in sorted({**results[0][0], **results[1][0]}.items()) for g in of_layer]
    losses = [value for _, _, value in results if value is not None]
    assert losses and losses == [pytest.approx(total)] * len(losses)
    for _, outer, _ in results:  # whole on each rank
        for ours, theirs in zip([*grads, *outer], expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def shares_a_graph(plan: str) -> list:
    model, (_, y, outer, both) = chain(), given()
    Pipeline(plan, model, loss_fn=error).step(both, y, scale=both)
    return [p.grad for p in outer.parameters()]


def test_one_that_is_the_input_too(world2, tmp_path):
    """Every rank gets what it trains as a keyword, and the first one what it trains as the input, too."""
    got = world2.run(shares_a_graph, str(make_plan(tmp_path, LAYOUTS["stock"], 8, MICRO_BATCHES)))
    for first, ours in zip((True, False), got, strict=True):
        _, y, outer, both = given()
        error(run(chain(), both if first else both.detach(), scale=both), y).backward()
        for mine, parameter in zip(ours, outer.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad)


def three() -> list[nn.Parameter]:
    return [nn.Parameter(0.1 * torch.randn(MICRO_BATCHES * BATCH, WIDTH)) for _ in range(3)]


def in_another_order(plan: str) -> list:
    model, (x, y, _, _), (scale, up, down) = chain(), given(), three()
    named = {"scale": scale, "pair": {"up": up, "down": down}}
    if dist.get_rank():
        named = {"pair": {"down": down, "up": up}, "scale": scale}
    Pipeline(plan, model, loss_fn=error).step(x, y, **named)
    return [scale.grad, up.grad, down.grad]


@pytest.mark.parametrize("layout", ["stock", "sharded"])
def test_each_rank_may_give_them_in_another_order(world2, tmp_path, layout):
    got = world2.run(in_another_order, str(make_plan(tmp_path, LAYOUTS[layout], 8, MICRO_BATCHES)))
    model, (x, y, _, _), (scale, up, down) = chain(), given(), three()
    error(run(model, x, scale=scale, pair={"up": up, "down": down}), y).backward()
    for ours in got:
        for mine, parameter in zip(ours, (scale, up, down), strict=True):
            torch.testing.assert_close(mine, parameter.grad)


def test_gradients_are_summed_at_once_where_the_group_sends_from(monkeypatch):
    """On a GPU, also of a parameter that stayed on the CPU."""
    device, sent = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []
    monkeypatch.setattr(dist, "all_reduce", lambda total, group: sent.append(total.mul_(2)))
    sizes = (((2, 3), torch.float32), ((), torch.float32), ((2,), torch.float64))
    given = [nn.Parameter(torch.ones(size, dtype=dtype)) for size, dtype in sizes]
    named = Outside()
    sum((leaf.sum() for leaf in named.apart(given[:2])), torch.zeros(())).backward()
    named.apart(given[2])  # which no stage here uses
    named.sum(None, device)
    named.backward(Outside())
    assert [(total.dtype, total.numel(), total.device.type) for total in sent] == [
        (torch.float32, 7, device.type),
        (torch.float64, 2, device.type),
    ]
    assert [parameter.grad.unique().tolist() for parameter in given] == [[2], [2], [0]]


def test_in_inference(tmp_path):
    plan = make_plan(tmp_path, ONE, 8, MICRO_BATCHES, text=placement_text(ONE, 8, trains=False))
    model, (x, _, _, scale) = chain(), given()
    with torch.no_grad():
        answers = Pipeline(plan, layers(model)).infer(x, scale=scale, flips=True)
        for part, scales, answer in zip(*(t.chunk(MICRO_BATCHES) for t in (x, scale)), answers, strict=True):
            assert torch.equal(run(model, part, scale=scales, flips=True), answer)


def test_refusals(tmp_path):
    plan = str(make_plan(tmp_path, ONE, 8, MICRO_BATCHES))
    pipe, (x, y, _, scale) = Pipeline(plan, layers([Scaled(), *(Plain() for _ in range(7))]), error), given()
    with pytest.raises(BatchError, match="no layer of the chain takes an argument 'scales'"):
        pipe.step(x, y, scales=scale)
    for rows in (len(x) - 1, MICRO_BATCHES):  # the latter can be cut, but is no batch
        with pytest.raises(
            ValueError, match="what the stages are given holds tensors of shapes .* like one batch"
        ):
            pipe.step(x, y, scale=torch.ones(rows, WIDTH))
    assert pipe.step(x, y, scale=[torch.ones(WIDTH)] * MICRO_BATCHES) > 0
    assert pipe.step(x, y, scale=2.0) > 0  # a number is for every micro-batch
    with pytest.raises(TypeError, match="scale"):
        pipe.step(x, y)
    with pytest.raises(ValueError, match=r"build is a Scaled: expected layers\(chain\), or a function"):
        Pipeline(plan, Scaled())
    with pytest.raises(
        PipelineError, match=r"group is a str: expected a process group, as mesh.get_group\(\)"
    ):
        Pipeline(plan, chain(), group="world")


def forgets(plan: str, how: str) -> str:
    model = [Scaled(), *(Through() for _ in range(7))]
    pipe, (x, y, _, scale) = Pipeline(plan, nn.Sequential(*model), error), given()
    first = dist.get_rank() == 0
    try:
        if how == "left out":
            pipe.step(x, y, scale=2.0, **({"flips": True} if first else {}))
        else:
            other = scale.detach() if how == "detached" else scale[:, :1]
            pipe.step(x, y, scale=scale if first else other)
    except PipelineError as refused:
        return str(refused)
    return ""


TRAINED = "scale (trained: (12, 16) torch.float32)"


@pytest.mark.parametrize(
    ("how", "differ"),
    [
        ("left out", "scale against flips, scale"),
        ("detached", f"scale against {TRAINED}"),
        ("of another shape", f"{TRAINED.replace('16', '1')} against {TRAINED}"),
    ],
)
def test_a_rank_that_gives_other_ones_is_named(world2, tmp_path, how, differ):
    said = world2.run(forgets, str(make_plan(tmp_path, LAYOUTS["stock"], 8, MICRO_BATCHES)), how)
    assert said == [f"ranks [1] gave other keyword arguments than rank 0: {differ}"] * 2
