# SPDX-License-Identifier: Apache-2.0
"""Stages that are recomputed behind DeepSpeed's engine: on one rank, or sharded ones, with collectives."""

import itertools
import re
from dataclasses import replace

import pytest
from support import models, shapes
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.shapes import Stage
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine, train, weights

CUTS, RANKS = (2, 4, 6), (0, 1, 0, 1)


RECOMPUTED = {0, 1, 3}  # of the four stages


def plan_of(folder, split: bool) -> str:
    layout = Layout("recompute", CUTS, RANKS, split=split)
    text = placement_text(layout, LAYERS)
    for s in RECOMPUTED:
        text = re.sub(rf'(name = "s{s}"\nlayers = .*\n)', r"\1recompute = true\n", text)
    return str(make_plan(folder, layout, LAYERS, MICRO_BATCHES, text=text))


@pytest.mark.parametrize("split", everyday([False, True], True), ids=["whole", "split"])
def test_same_numbers(world2, stock, tmp_path, split):
    """Recomputing changes no bit, the first stage's integers and the last stage's loss included."""
    options = Options(stages=2, optimizer="SGD", seed_layers=True)
    plan = plan_of(tmp_path, split)
    expected, got = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (got["losses"], got["evaluation"], got["last"]) == (
        expected["losses"],
        expected["evaluation"],
        expected["last"],
    )


def forwards_of_blocks(options: Options) -> tuple[int, int]:
    """How often this rank's Blocks run in a training step, and in an evaluation."""
    engine, ticks = make_engine(options), itertools.count()  # of which nothing is put back
    original = models.Block.forward

    def counting(block, hidden):
        next(ticks)
        return original(block, hidden)

    models.Block.forward = counting
    try:
        engine.train_batch(data_of(engine))
        trained = next(ticks)
        engine.eval_batch(data_of(engine))
    finally:
        models.Block.forward = original
    return trained, next(ticks) - trained - 1


def test_stages_run_twice(world2, tmp_path):
    plan = plan_of(tmp_path, split=False)
    blocks = {
        layer
        for layer, spec in enumerate(models.layers(False, False))
        if getattr(spec, "typename", None) is models.Block
    }
    bounds = [0, *CUTS, LAYERS]
    times = [
        sum(b in range(bounds[s], bounds[s + 1]) for b in blocks) * (1 + (s in RECOMPUTED)) for s in range(4)
    ]
    got = world2.run(forwards_of_blocks, Options(stages=2, section={"plan": plan}))
    for rank, (trained, evaluated) in enumerate(got):
        own = [s for s in range(4) if RANKS[s] == rank]
        # Of one micro-batch; one more has shown what layers draw.
        forwards = sum(times[s] // (1 + (s in RECOMPUTED)) for s in own)
        assert trained == MICRO_BATCHES * sum(times[s] for s in own) + forwards
        assert evaluated == (MICRO_BATCHES + 1) * forwards


# The vocabulary's model: an embedding, a layer of the user's own, and a head with its norm on both ranks.
SHARDED = [
    Stage("embedding", 0, 1, (0, 1)),
    Stage("front", 1, 3, (0,), ("embedding",)),
    Stage("own", 3, 4, (0, 1), ("front",)),
    Stage("back", 4, 6, (1,), ("own",)),
    Stage("head", 6, 8, (0, 1), ("back",)),
]


def exchanging(options: Options) -> dict:
    """Two steps, and in which order this rank came to the collectives of sharded stages in the second."""
    from ostinato.nn import Shard

    engine, exchanged = make_engine(options), []
    data, own = data_of(engine), {name: getattr(Shard, name) for name in ("sum_", "collect")}

    def noted(name: str):
        return lambda shard, tensor: exchanged.append((name, tuple(tensor.shape))) or own[name](shard, tensor)

    losses = [engine.train_batch(data).item()]
    try:
        for name in own:
            setattr(Shard, name, noted(name))
        losses.append(engine.train_batch(data).item())
    finally:
        for name, method in own.items():
            setattr(Shard, name, method)
    return {"losses": losses, "weights": weights(engine), "exchanged": exchanged}


CHECKPOINTED = {"checkpoint_interval": 1, "seed_layers": True}
WAYS = {
    "plan": (False, True, {}),
    "plan-split": (True, True, {}),
    "activation-checkpointing": (
        True,
        False,
        CHECKPOINTED | {"config": {"pipeline": {"use_reentrant": False}}},
    ),
    "reentrant-checkpointing": (False, False, CHECKPOINTED),
}


@pytest.mark.parametrize("way", everyday(WAYS, "plan-split", "reentrant-checkpointing"))
def test_sharded_stages(world2, tmp_path, way):
    """No bit changes, and all ranks come to the collectives of a step in one order: per micro-batch to the
    sums of the embedding's and the layer's outputs, and in backwards to those of the layer's and the head's
    gradients, and to the loss; the outputs once more where they are recomputed. (Re-entrant checkpointing
    cannot recompute an embedding.)"""
    split, recompute, changed = WAYS[way]
    plans = [
        make_plan(
            tmp_path / name,
            Layout("m", (), ()),
            LAYERS,
            MICRO_BATCHES,
            text=shapes.placement_text("m", SHARDED, split, recompute=again),
        )
        for name, again in (("keep", False), ("again", recompute))
    ]
    options = Options(model="vocabulary", optimizer="SGD", seed_layers=True)
    kept = world2.run(exchanging, replace(options, section={"plan": str(plans[0])}))
    again = world2.run(exchanging, replace(options, section={"plan": str(plans[1])}, **changed))
    for of_rank, expected in zip(again, kept, strict=True):
        assert (of_rank["losses"], of_rank["weights"]) == (expected["losses"], expected["weights"])
        assert of_rank["exchanged"] == again[0]["exchanged"]
        assert len(expected["exchanged"]) == 5 * MICRO_BATCHES
        assert len(of_rank["exchanged"]) == (6 if way.startswith("reentrant") else 7) * MICRO_BATCHES
