# SPDX-License-Identifier: Apache-2.0
"""Stages on several ranks behind DeepSpeed's engine, against DeepSpeed's own 1F1B on the same model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.save.optimizer_files import equal
from ostinato.deepspeed.save.seal import unsealed
from sharded_jobs import ShardedExperts
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import (
    MICRO_BATCHES,
    Options,
    close,
    data_of,
    make_engine,
    refusal,
    train,
    trained_and_saved,
    weights,
)
from support.vocabulary_model import LAYERS, VOCABULARY, WIDTH, Mixer
from test_deepspeed_features import fp16_on_a_processor
from torch import nn

from ostinato import checkpoint

ALL_2, ALL_4 = (0, 1), (0, 1, 2, 3)

EMBEDDING_2 = Layout("embedding", (1, 4), (ALL_2, 0, 1))
M_2 = Layout("m", (1, 3, 6), (ALL_2, 0, 1, ALL_2))
HEAD_2 = Layout("head", (3, 6), (0, 1, ALL_2))
M_4 = Layout("m", (1, 2, 3, 5, 6), (ALL_4, 0, 1, 2, 3, ALL_4))
NN_4 = Layout("nn", (1, 2, 3, 4, 5), (ALL_4, 0, 1, ALL_4, 2, 3))
ODD_4 = Layout("odd", (1, 2, 3, 4, 6), ((0, 2, 3), 1, 0, (1, 2), 3, (0, 1)))


ZERO_1 = {"zero_optimization": {"stage": 1}}
CLIPPED = {"gradient_clipping": 0.1}
TWO = Options(model="vocabulary", optimizer="SGD", steps=10)
FOUR = replace(TWO, stages=4)

CASES = {
    "m": (2, M_2, TWO),
    "head-adam": (2, HEAD_2, replace(TWO, optimizer="Adam")),
    "m-zero1-clipped": (2, M_2, replace(TWO, config=ZERO_1 | CLIPPED)),
    "m-clipped": (2, M_2, replace(TWO, config=CLIPPED)),
    "m-own-optimizer": (2, M_2, replace(TWO, own_optimizer=True)),
    "m4": (4, M_4, FOUR),
    "nn4": (4, NN_4, FOUR),
    "odd4-zero1": (4, ODD_4, replace(FOUR, config=ZERO_1)),
    "data-parallel-m-zero1": (4, M_2, replace(TWO, config=ZERO_1)),
}


REPEATED = ("m", "nn4")


@pytest.mark.parametrize("case", everyday(CASES, "m", "m-own-optimizer"))
def test_trains_what_deepspeed_trains(case, worlds, stock, tmp_path):
    """Within rounding: a head's sums and the norms for clipping are added rank by rank. Equal from run to
    run."""
    size, layout, options = CASES[case]
    world, planned = worlds[size], replace(options, section={"plan": str(plan_of(tmp_path, layout))})
    expected, got = stock(world, options), world.run(train, planned)
    repeated = world.run(train, planned) if case in REPEATED else got
    for ours, theirs, again in zip(got, expected, repeated, strict=True):
        assert ours["first"] == theirs["first"]
        near(ours["losses"], theirs["losses"])
        assert ours["losses"][-1] < ours["losses"][0] or "gradient_clipping" in options.config
        near(ours["evaluation"], theirs["evaluation"])
        close(ours["last"], theirs["last"], BOUND)
        if theirs["norm"] is not None:
            near(ours["norm"], theirs["norm"])
        assert (again["losses"], again["last"]) == (ours["losses"], ours["last"])
    logits = [r["logits"] for r in got if r["logits"] is not None]
    whole = next(r["logits"] for r in expected if r["logits"] is not None)
    assert logits and logits[0].shape[-1] == VOCABULARY
    torch.testing.assert_close(logits[0], whole, rtol=BOUND, atol=BOUND)


BOUND = 2e-5


@pytest.mark.parametrize("optimizer", everyday(["SGD", "Adam"], "Adam"))
def test_a_sharded_embedding_alone_keeps_every_bit(world2, stock, tmp_path, optimizer):
    """All addends of its sums but one are zero."""
    options = replace(TWO, optimizer=optimizer)
    planned = replace(options, section={"plan": str(plan_of(tmp_path, EMBEDDING_2))})
    for ours, theirs in zip(world2.run(train, planned), stock(world2, options), strict=True):
        assert all(ours[key] == theirs[key] for key in ("losses", "last", "evaluation"))


def plan_of(folder, layout):
    return make_plan(folder / layout.name, layout, LAYERS, MICRO_BATCHES)


def near(ours, theirs) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=BOUND, atol=BOUND)


# ---- checkpoints

STOCK_2 = Layout("stock", (4,), (0, 1))
# The user's own layer, of which one matrix is cut along its rows.
ROWS_2 = Layout("rows", (3, 4), (0, ALL_2, 1))
TWO_GROUPS = replace(TWO, own_optimizer=True)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Sections by layout."""
    folder = tmp_path_factory.mktemp("plans")
    return {layout: {"plan": str(plan_of(folder, layout))} for layout in (M_2, HEAD_2, STOCK_2, ROWS_2)}


def save(options: Options, folder: str) -> dict:
    """Trains 3 steps, saves, trains 3 more."""
    engine, data = trained_and_saved(options, folder, 3)
    return {"weights": weights(engine), "losses": [engine.train_batch(data).item() for _ in range(3)]}


def load(options: Options, folder: str, optimizer: bool = True) -> dict:
    engine = make_engine(options)
    data = data_of(engine, after=3)
    try:
        engine.load_checkpoint(folder, load_optimizer_states=optimizer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"weights": weights(engine), "losses": [engine.train_batch(data).item() for _ in range(3)]}


@pytest.mark.parametrize("config", everyday([{}, ZERO_1], ZERO_1), ids=["zero0", "zero1"])
def test_a_checkpoint_goes_on_where_it_was_saved(world2, plans, saved, config):
    options = replace(TWO, optimizer="Adam", config=config, section=plans[M_2])
    folder, expected = saved(world2, options, save)
    for rank, result in enumerate(world2.run(load, options, folder)):
        assert "error" not in result, result
        assert result == expected[rank]


@pytest.mark.parametrize("first", ["deepspeed", "ostinato"])
def test_weights_pass_between_deepspeed_and_shards(world2, plans, saved, first):
    alone, ours = TWO, replace(TWO, section=plans[M_2])
    writer, reader = (alone, ours) if first == "deepspeed" else (ours, alone)
    folder, expected = saved(world2, writer, save)
    files = sorted(path.name for path in (Path(folder) / "global_step3").glob("layer_*"))
    assert files == [f"layer_{i:02d}-model_states.pt" for i in range(LAYERS)]
    for rank, result in enumerate(world2.run(load, reader, folder, False)):
        assert result["weights"] == expected[rank]["weights"]
        near(result["losses"], expected[rank]["losses"])


def save_again(options: Options, folder: str, into: str) -> None:
    engine = make_engine(options)
    engine.load_checkpoint(folder)
    engine.save_checkpoint(into)


def in_half(options: Options, job, *args):
    with fp16_on_a_processor():
        return job(options, *args)


def save_half(options: Options, folder: str) -> dict:
    return in_half(options, save, folder)


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}
STATES = {
    "fp32": TWO_GROUPS,
    "fp32-zero1": replace(TWO, optimizer="Adam", config=ZERO_1),
    "fp16": replace(TWO, optimizer="Adam", config=FP16),
    "bf16-zero1": replace(TWO_GROUPS, config=ZERO_1 | {"bf16": {"enabled": True}}),
}
ACROSS = [(M_2, HEAD_2), (None, M_2), (M_2, STOCK_2), (HEAD_2, ROWS_2)]


@pytest.mark.parametrize("case", everyday(STATES, "fp32", "fp32-zero1"))
@pytest.mark.parametrize("before, after", ACROSS, ids=lambda layout: layout.name if layout else "DeepSpeed")
def test_optimizer_state_passes_between_parts_and_wholes(world2, plans, saved, tmp_path, before, after, case):
    """With the losses of the run that saved it; and what is saved again, and loaded where it was saved first, is
    what was there."""
    first, second = (
        replace(STATES[case], section=plans[layout] if layout else None) for layout in (before, after)
    )
    folder, expected = saved(world2, first, save_half)
    for rank, result in enumerate(world2.run(in_half, second, load, folder)):
        assert "error" not in result, result
        assert result["losses"] == pytest.approx(
            expected[rank]["losses"], rel=2e-2 if "16" in case else BOUND
        )
    if before is None:
        return  # without a plan, DeepSpeed refuses what is sealed
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    world2.run(in_half, second, save_again, folder, there)
    world2.run(in_half, first, save_again, there, back)
    for path in (Path(folder) / "global_step3").glob("*mp_rank_*.pt"):
        was, now = (
            torch.load(x, weights_only=False) for x in (path, Path(back) / "global_step3" / path.name)
        )
        for key in ("optimizer", "optimizer_state_dict"):
            states = [unsealed(saved.get(key)) or {} for saved in (was, now)]
            # Objects that know no equality.
            scalers = [vars(state.pop("loss_scaler", TWO)) for state in states]
            assert equal(*states) and equal(*scalers), (path.name, key)


@pytest.mark.parametrize("case", everyday(["fp32", "fp32-zero1", "bf16-zero1"], "fp32-zero1"))
def test_optimizer_state_passes_between_four_ranks_and_two(world2, world4, saved, tmp_path, case):
    options = replace(STATES[case], seed_layers=True)  # for the buffers that no file has
    on = {
        layout: replace(options, stages=ranks, section={"plan": str(plan_of(tmp_path / str(ranks), layout))})
        for layout, ranks in ((ODD_4, 4), (NN_4, 4), (M_2, 2))
    }
    folder, (expected, *_) = saved(world4, on[ODD_4], save)
    for world, layout in ((world4, NN_4), (world2, M_2)):
        for result in world.run(load, on[layout], folder):
            assert result["losses"] == pytest.approx(expected["losses"], rel=2e-2 if "16" in case else BOUND)


@pytest.mark.parametrize("case", everyday(STATES, "fp32", "fp32-zero1"))
def test_deepspeed_alone_goes_on_where_parts_are_converted(world2, plans, saved, tmp_path, case):
    options = STATES[case]
    folder, expected = saved(world2, replace(options, section=plans[M_2]), save_half)
    assert checkpoint.main(["convert", folder, str(tmp_path / "alone"), "--stages", "2"]) == 0
    for rank, result in enumerate(world2.run(in_half, options, load, str(tmp_path / "alone"))):
        assert result["losses"] == pytest.approx(
            expected[rank]["losses"], rel=2e-2 if "16" in case else BOUND
        )


def test_a_first_start_reads_wholes_for_parts(world2, plans, saved):
    folder, expected = saved(world2, TWO_GROUPS, save)
    first = replace(TWO_GROUPS, section=plans[M_2] | {"check": 4})
    for rank, result in enumerate(world2.run(load, first, folder)):
        near(result["losses"], expected[rank]["losses"])


# ---- refusals


class Embed(nn.Module):
    """An embedding that does not say how it is cut."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)


def unknown():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(Embed)


def tied():
    from deepspeed.pipe import TiedLayerSpec

    return TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH)


def sparse():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(nn.Embedding, VOCABULARY, WIDTH, max_norm=1.0)


def few():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(nn.Embedding, 1, WIDTH)


REFUSED = {
    unknown: "Unsupported: stage 0 is sharded over pipeline ranks [0, 1], but its layer 0: Embed does not say how to cut it",
    tied: 'Unsupported: stage 0 is sharded over pipeline ranks [0, 1], but its layer 0 is tied ("table")',
    sparse: 'OstinatoError: layer "0": nn.Embedding(max_norm=1.0) cannot be sharded',
    few: "OstinatoError: layer \"0\": Embedding: 'weight' has 1 rows, too few for 2 ranks",
}


class ShardedDropping(ShardedExperts):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Dropping(Mixer):
    """A layer of the user's own that draws, once it has summed over the ranks."""

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)

    def sharded(self, shard):
        return ShardedDropping(self, shard)


def dropping():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(Dropping)


def trained(options: Options) -> list[float] | str:
    try:
        return train(options)["losses"]
    except OstinatoError as error:
        return str(error)


def test_ranks_of_a_sharded_layer_draw_the_same_numbers_or_none(world2, tmp_path):
    alone = replace(TWO, changed=((3, dropping),), steps=3)
    layout = Layout("mixer", (3, 4), (0, ALL_2, 1))
    ours = replace(alone, section={"plan": str(plan_of(tmp_path, layout))})
    for said in world2.run(trained, ours):
        assert said.startswith(
            "layer 3: several ranks hold parts, and each would draw random numbers of its own: set "
        )
    seeded = world2.run(trained, replace(ours, seed_layers=True))
    for losses, expected in zip(seeded, world2.run(trained, replace(alone, seed_layers=True)), strict=True):
        near(losses, expected)


@pytest.mark.parametrize("layer", REFUSED)
def test_what_cannot_be_sharded_is_refused_before_step_1(world2, tmp_path, layer):
    options = replace(TWO, changed=((0, layer),), section={"plan": str(plan_of(tmp_path, M_2))})
    for said in world2.run(refusal, options):
        assert said.startswith(REFUSED[layer]), said
