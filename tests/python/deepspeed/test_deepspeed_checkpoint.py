# SPDX-License-Identifier: Apache-2.0
"""Checkpoints pass between runs with ostinato and runs without it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

STOCK = Layout("stock", (4,), (0, 1))
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
ZERO_1 = {"zero_optimization": {"stage": 1}}


def save(options: Options, folder: str) -> list[float]:
    """Trains 3 steps, saves, trains 3 more; the losses of the latter."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3):
        engine.train_batch(data)
    engine.save_checkpoint(folder, client_state={"note": "kept"})
    return [engine.train_batch(data).item() for _ in range(3)]


def load(options: Options, folder: str, optimizer: bool = True) -> dict:
    """Loads, then trains the same 3 steps: `losses`; or `error`."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3 * MICRO_BATCHES):
        if engine.is_first_stage() or engine.is_last_stage():
            next(data)
    try:
        _, client = engine.load_checkpoint(folder, load_optimizer_states=optimizer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    loaded = weights(engine)
    return {
        "note": client["note"],
        "steps": engine.global_steps,
        "weights": loaded,
        "losses": [engine.train_batch(data).item() for _ in range(3)],
    }


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES)) for x in (STOCK, WAVE)}


def under(options: Options, plan: str) -> Options:
    return replace(options, section={"plan": plan})


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
@pytest.mark.parametrize("first", ["ostinato", "deepspeed"])
def test_same_partition(world2, plans, saved, config, first):
    """Saved on one side, loaded on the other, optimizer and all: training goes on as if nothing had happened."""
    alone = Options(config=config)
    ours = under(alone, plans["stock"])
    writer, reader = (ours, alone) if first == "ostinato" else (alone, ours)
    folder, expected = saved(world2, writer, save)
    for rank, result in enumerate(world2.run(load, reader, folder)):
        assert result["losses"] == expected[rank]
        assert (result["note"], result["steps"]) == ("kept", 3)


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_same_placement(world2, plans, saved, config):
    options = under(Options(config=config, tied=True), plans["wave"])
    folder, expected = saved(world2, options, save)
    for rank, result in enumerate(world2.run(load, options, folder)):
        assert result["losses"] == expected[rank]


def test_layer_files_are_those_of_deepspeed(world2, plans, saved):
    folders = [saved(world2, options, save)[0] for options in (under(Options(), plans["wave"]), Options())]
    ours, theirs = (sorted((Path(folder) / "global_step3").glob("layer_*")) for folder in folders)
    assert [path.name for path in ours] == [path.name for path in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        saved, expected = (torch.load(path, weights_only=False) for path in (mine, other))
        assert saved.keys() == expected.keys()
        assert all(torch.equal(saved[name], expected[name]) for name in saved)


def test_weights_load_under_another_placement(world2, plans, saved):
    folder, _ = saved(world2, Options(), save)
    alone, ours = (world2.run(load, options, folder, False) for options in (Options(), under(Options(), plans["wave"])))
    for result, expected in zip(ours, alone, strict=True):
        assert result["weights"] == expected["weights"]
        assert result["losses"] == expected["losses"]


@pytest.mark.parametrize("writer", ["deepspeed", "ostinato"])
def test_optimizer_state_of_another_placement(world2, plans, saved, writer):
    """DeepSpeed alone would load it into the wrong layers without a word."""
    alone = Options(config=ZERO_1)
    wave, stock = (under(alone, plans[name]) for name in ("wave", "stock"))
    first, second = (alone, wave) if writer == "deepspeed" else (wave, stock)
    folder, _ = saved(world2, first, save)
    for result in world2.run(load, second, folder):
        assert result["error"].startswith("OstinatoError: ")
        for words in ("optimizer state of", "[0, 6, 7]", "load_optimizer_states=False", "ds_to_universal"):
            assert words in result["error"]


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_optimizer_state_of_a_placement_under_deepspeed_alone(world2, plans, saved, config):
    """It fits where layers have equal shapes, and would be that of others."""
    alone = Options(model="strangers", config=config)
    folder, _ = saved(world2, under(alone, plans["wave"]), save)
    for result in world2.run(load, alone, folder):
        assert result["error"].startswith("OstinatoError: ") and "optimizer state of a placement of ostinato's" in result["error"]
    ours, theirs = (world2.run(load, options, folder, False) for options in (under(alone, plans["wave"]), alone))
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]


def test_nothing_to_load(world2, plans, tmp_path):
    """DeepSpeed's own answer to a folder without checkpoints stays."""
    results = world2.run(nothing, under(Options(), plans["wave"]), str(tmp_path / "empty"))
    assert results == [(None, None)] * 2


def nothing(options: Options, folder: str):
    training.dist.barrier()
    return make_engine(options).load_checkpoint(folder)
