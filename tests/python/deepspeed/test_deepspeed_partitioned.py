# SPDX-License-Identifier: Apache-2.0
"""From a profile through `ostinato plan` to a training: chunks, sharded layers and recomputation, against
DeepSpeed's 1F1B."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch
from ostinato import _profiler, _search
from ostinato.profile.model.shardable import mark_shardable
from sharded_jobs import Experts
from support import models, training, vocabulary_model
from support.models import LAYERS, Block
from support.profiles import write_profile
from torch import nn

SLOW, USUAL = 40_000, 4_000  # microseconds


def plan(folder, capfd, *options):
    """(name of the winner, the "ostinato" section)."""
    words = [
        "plan",
        str(folder / "profile.json"),
        "--devices",
        "2",
        "--micro-batches",
        "4",
        "--time-limit",
        "2",
        "--json",
    ]
    words += [
        "--all-devices",
        "--output",
        str(folder / "plan.json"),
        "--placement-output",
        str(folder / "placement.toml"),
        *options,
    ]
    capfd.readouterr()
    assert _search.main(words) == 0
    return json.loads(capfd.readouterr().out)["chosen"], {"plan": str(folder / "plan.json")}


def train_and_count(options):
    """The training, and how often a Block ran forward in the last step of this rank."""
    engine = training.make_engine(options)
    blocks = [m for m in engine.module.modules() if isinstance(m, Block)]
    counts = [0]
    data = training.data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(options.steps - 1)]
    for block in blocks:
        block.register_forward_hook(lambda *_: counts.__setitem__(0, counts[0] + 1))
    losses.append(engine.train_batch(data).item())
    return {"losses": losses, "last": training.weights(engine), "forwards": counts[0], "blocks": len(blocks)}


def test_layers_that_a_profile_marks():
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    cut = [LayerSpec(nn.Embedding, 3, 4), nn.Linear(2, 2), LayerSpec(Experts, 4)]
    whole = [TiedLayerSpec("e", nn.Embedding, 3, 4), nn.LayerNorm(3), torch.tanh, LayerSpec(nn.GRU, 2, 2)]
    rows = mark_shardable([_profiler.LayerCost() for _ in cut + whole], cut + whole)
    assert [row.shardable for row in rows] == [True] * len(cut) + [False] * len(whole)


def test_several_chunks(world2, stock, tmp_path, capfd):
    write_profile(tmp_path / "profile.json", [USUAL] * LAYERS)
    chosen, section = plan(tmp_path, capfd)
    assert "chunks per device" in chosen
    options = training.Options(steps=5)
    for ours, theirs in zip(world2.run(train_and_count, replace(options, section=section)),
                            stock(world2, options, train_and_count), strict=True):  # fmt: skip
        assert (ours["losses"], ours["last"]) == (theirs["losses"], theirs["last"])
        assert ours["forwards"] == training.MICRO_BATCHES * ours["blocks"]


@pytest.mark.parametrize(
    ("layers_kept", "without", "how"),
    [
        (4, "chunks,moves", "1 chunk per device, recompute"),
        (5, "moves", "looped, 2 chunks per device, recompute in part"),
    ],
)
def test_recomputation_is_enforced(world2, stock, tmp_path, capfd, layers_kept, without, how):
    """Memory for the activations of so many layers: those that recompute run twice."""
    write_profile(tmp_path / "profile.json", [USUAL] * LAYERS, kept=1 << 20)
    memory = f"{layers_kept * 2**20 + 8192}B"
    chosen, section = plan(tmp_path, capfd, "--device-memory", memory, "--without", without)
    assert chosen.split(", cut for")[0] == how
    stages = tomllib.loads((tmp_path / "placement.toml").read_text())["stages"]
    again = [layer for stage in stages if stage.get("recompute") for layer in range(*stage["layers"])]
    assert 0 < len(again) < LAYERS
    options = training.Options(steps=5, checkpoint_interval=0)
    got = world2.run(train_and_count, replace(options, section=section))
    for ours, theirs in zip(got, stock(world2, options, train_and_count), strict=True):
        assert (ours["losses"], ours["last"]) == (theirs["losses"], theirs["last"])
    blocks = [
        layer
        for layer, spec in enumerate(models.layers(False, False))
        if getattr(spec, "typename", None) is Block
    ]
    runs = sum(1 + (layer in again) for layer in blocks)
    assert sum(rank["forwards"] for rank in got) == training.MICRO_BATCHES * runs


@pytest.mark.parametrize("slow", [(0, vocabulary_model.LAYERS - 1), (0,)])
def test_sharded_layers(world2, stock, tmp_path, capfd, slow):
    """An embedding, or an embedding and a head, that are too long for one device."""
    times = [SLOW if index in slow else USUAL for index in range(vocabulary_model.LAYERS)]
    write_profile(tmp_path / "profile.json", times, shardable=slow)
    chosen, section = plan(tmp_path, capfd, "--without", "moves")
    assert chosen.endswith("sharded") and chosen.count("Layer") == len(slow)
    options = training.Options(model="vocabulary", optimizer="SGD", steps=5)
    for ours, theirs in zip(world2.run(training.train, replace(options, section=section)),
                            stock(world2, options), strict=True):  # fmt: skip
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=2e-5)
        training.close(ours["last"], theirs["last"])
