# SPDX-License-Identifier: Apache-2.0
"""Evaluation runs the plan's forwards; a plan of forwards only serves requests, for latency or for
throughput."""

from dataclasses import replace

import pytest
import torch.distributed as dist
from ostinato.deepspeed import OstinatoError
from support.linked import a_group_for_each_direction
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.plans import placement_text as chain_text
from support.shapes import placement_text, two_directions
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, make_engine
from test_deepspeed_branches import K_2
from test_deepspeed_sharded import M_2

from ostinato.trace import read_traces

UNEVEN = Layout("chain", (5,), (0, 1))
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
X = Layout("x", (5,), ())
K = Layout("k", (), ())

CASES = {
    "chain-latency": (UNEVEN, "mixed", chain_text(UNEVEN, LAYERS, trains=False), "latency"),
    "looped": (LOOPED, "mixed", chain_text(LOOPED, LAYERS, trains=False), "makespan"),
    "wave": (WAVE, "mixed", chain_text(WAVE, LAYERS, trains=False), "makespan"),
    "x": (X, "mixed", placement_text("x", two_directions(X.cuts, LAYERS), trains=False), "makespan"),
    "k-latency": (K, "branches", placement_text("k", K_2, trains=False), "latency"),
    "m": (M_2, "vocabulary", chain_text(M_2, LAYERS, trains=False), "makespan"),
}


def answers(options: Options) -> dict:
    """Losses, all outputs and the last logits of eval_batch(), by an engine without an optimizer; what
    training raises."""
    engine = make_engine(options)
    data = engine.batches(5)
    losses = [engine.eval_batch(data, num_micro_batches=n).item() for n in (None, 11)]
    engine.total_loss = None  # which DeepSpeed adds the next outputs to
    outputs = engine.eval_batch(
        data, compute_loss=False, reduce_output=None, bcast_loss=False, num_micro_batches=7
    )
    last, logits = engine.eval_batch(data, return_logits=True, num_micro_batches=5)
    refused = ""
    if options.section is not None:
        with pytest.raises(OstinatoError) as error:
            engine.train_batch(data)
        refused = str(error.value)
        engine.destroy()
    return {"losses": [*losses, last.item()], "outputs": outputs, "logits": logits, "refused": refused}


def first_given(results: list[dict], key: str):
    """DeepSpeed gives outputs to the rank that reports the loss only."""
    return next(r[key] for r in results if r[key] is not None)


@pytest.mark.parametrize("case", everyday(CASES, "wave", "x", "k-latency", "m"))
def test_a_plan_of_forwards_serves_requests(case, world2, stock, tmp_path):
    """In rounds of the plan's 4 requests, and what is left; every answer is DeepSpeed's, in the order of the
    requests."""
    layout, model, text, objective = CASES[case]
    options = Options(model=model, optimizer=None)
    plan = make_plan(tmp_path, layout, LAYERS, MICRO_BATCHES, text=text, objective=objective)
    ours = replace(options, section={"plan": str(plan), "trace": str(tmp_path / "trace")})
    expected, got = stock(world2, options, answers), world2.run(answers, ours)
    bound = 2e-6 if case == "m" else 0.0  # ranks sum their parts of the head
    for mine, theirs in zip(got, expected, strict=True):
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=bound, abs=0.0)
        assert "train_batch(): the plan holds forwards only" in mine["refused"]
    for mine, theirs in zip(first_given(got, "outputs"), first_given(expected, "outputs"), strict=True):
        assert (mine - theirs).abs().max() <= bound
    assert (first_given(got, "logits") - first_given(expected, "logits")).abs().max() <= bound
    (first, second) = read_traces(tmp_path / "trace")
    ran = [i for i in (*first.instructions, *second.instructions) if i.is_compute]
    assert {i.action for i in ran} == {"F"} and all(i.end >= i.start for i in ran)


def world_outlives(options: Options) -> bool:
    """An engine with a group for each direction in which its plan sends, as on GPUs."""
    with a_group_for_each_direction() as made:
        engine = make_engine(options)
    assert sum(group.one_way for group in made) == 1
    engine.destroy()
    return dist.is_initialized()


def test_an_engine_of_forwards_ends_its_own_groups_only(world2, tmp_path):
    """Nothing is sent back, so each of its links has a group for one direction."""
    text = chain_text(UNEVEN, LAYERS, trains=False)
    plan = make_plan(tmp_path, UNEVEN, LAYERS, MICRO_BATCHES, text=text)
    options = Options(model="mixed", optimizer=None, section={"plan": str(plan)})
    assert world2.run(world_outlives, options) == [True, True]


def evaluated(options: Options) -> dict:
    """Evaluations of several sizes and shapes between training steps."""
    engine = make_engine(options)
    data, held_out, found = engine.batches(7), engine.batches(5), {"losses": []}
    for n in (None, 1, 6):
        found["losses"] += [
            engine.eval_batch(held_out, num_micro_batches=n).item(),
            engine.train_batch(data).item(),
        ]
    engine.total_loss = None
    found["outputs"] = engine.eval_batch(
        held_out, compute_loss=False, reduce_output=None, bcast_loss=False, num_micro_batches=6
    )
    return found


@pytest.mark.parametrize("method", everyday(["gpipe", "zb-v"], "zb-v"))
def test_evaluation_between_steps(world2, stock, tmp_path, method):
    """Of a training plan the forward part runs."""
    plan = make_plan(tmp_path, replace(WAVE, split=method == "zb-v"), LAYERS, MICRO_BATCHES, method)
    expected = stock(world2, Options(), evaluated)
    got = world2.run(evaluated, Options(section={"plan": str(plan)}))
    assert [r["losses"] for r in got] == [r["losses"] for r in expected]
    pairs = zip(first_given(got, "outputs"), first_given(expected, "outputs"), strict=True)
    assert all((mine == theirs).all() for mine, theirs in pairs)


def test_other_shapes_in_evaluation(world2, tmp_path):
    """A training plan announces its shapes once; evaluations may have others each time."""
    plan = make_plan(tmp_path, WAVE, LAYERS, MICRO_BATCHES)
    first, second = world2.run(lengths, Options(section={"plan": str(plan)}))
    assert first == second and len(set(first)) == 3


def lengths(options: Options) -> list[float]:
    engine, values = make_engine(options), []
    engine.train_batch(engine.batches(7))
    for length in (2, 4, 3):
        held_out = ((x[:, :length], y[:, :length]) for x, y in engine.batches(5))
        values.append(engine.eval_batch(held_out).item())
    return values


def test_a_rank_may_hold_nothing_to_train_where_nothing_is_trained(world2, stock, tmp_path):
    """DeepSpeed's optimizers refuse that; without one, a plain function is a stage as any other."""
    idle = Layout("idle", (4, 5), (0, 1, 0))
    plan = make_plan(tmp_path, idle, LAYERS, MICRO_BATCHES, text=chain_text(idle, LAYERS, trains=False))
    options = Options(optimizer=None)
    expected = stock(world2, options, answers)
    got = world2.run(answers, replace(options, section={"plan": str(plan)}))
    assert [r["losses"] for r in got] == [r["losses"] for r in expected]
