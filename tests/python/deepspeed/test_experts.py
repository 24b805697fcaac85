# SPDX-License-Identifier: Apache-2.0
"""Layers of experts (deepspeed.moe): on every rank they train as under DeepSpeed alone; where a rank would
have none, it is refused."""

from dataclasses import replace
from functools import partial

import pytest
import torch.distributed as dist
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.place.experts import spread_experts
from support import models
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support.training import (
    MICRO_BATCHES,
    MODELS,
    Options,
    Replacing,
    data_of,
    in_both_starts,
    make_engine,
    trained_and_saved,
    weights,
)
from torch import nn

WAVE = Layout("wave", (2, 4, 6), (0, 1, 1, 0))  # rank 0 has layers 0, 1, 6, 7


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.moe = MoE(
            models.WIDTH, nn.Linear(models.WIDTH, models.WIDTH), num_experts=2, ep_size=1, k=1, use_rts=False
        )

    def forward(self, hidden):
        return hidden + self.moe(hidden)[0]


MODELS["experts"] = Replacing(Experts)


def at(*layers: int) -> Options:
    return Options(model="experts", changed=tuple((layer, "experts") for layer in layers))


def trained(options: Options) -> dict:
    engine = make_engine(options)
    data = data_of(engine)
    return {"losses": [engine.train_batch(data).item() for _ in range(5)], "weights": weights(engine)}


def resumed(options: Options, folder: str) -> tuple[list[float], list[float]]:
    """Losses after the third step, and those after loading it. Each rank has other rates, as with groups by layer."""
    engine, data = trained_and_saved(options, folder, 3)
    engine.optimizer.param_groups[0]["lr"] *= 1 + dist.get_rank()
    engine.save_checkpoint(folder)
    going_on = [engine.train_batch(data).item() for _ in range(2)]
    engine.load_checkpoint(folder)
    data = data_of(engine, after=3)
    return going_on, [engine.train_batch(data).item() for _ in range(2)]


def refused(options: Options) -> str:
    try:
        make_engine(options)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return {"plan": str(make_plan(tmp_path_factory.mktemp("plan"), WAVE, LAYERS, MICRO_BATCHES))}


def test_experts_on_every_rank(world2, stock, section):
    options = at(1, 5)
    assert world2.run(trained, replace(options, section=section)) == stock(world2, options, trained)


def test_a_checkpoint_under_the_same_placement(world2, section, tmp_path):
    for going_on, after_loading in world2.run(resumed, replace(at(1, 5), section=section), str(tmp_path)):
        assert after_loading == going_on


def loading_refused(options: Options, saved: str, **how) -> str:
    engine = make_engine(options)
    before = weights(engine)
    with pytest.raises(OstinatoError) as error:
        engine.load_checkpoint(saved, **how)
    assert weights(engine) == before
    return str(error.value)


def test_weights_under_another_placement_are_refused(world2, section, tmp_path):
    """They are in files of ranks, from which a loose load would take those of some layers."""
    ours, alone, loose = replace(at(1, 5), section=section), at(1, 5), {"load_module_strict": False}
    for name, options in (("ours", ours), ("alone", alone)):
        world2.run(resumed, options, str(tmp_path / name))
    for name, options in (("ours", alone), ("alone", ours)):
        for how in ({}, {"load_optimizer_states": False} | loose, {"load_module_only": True} | loose):
            for said in world2.run(partial(loading_refused, **how), options, str(tmp_path / name)):
                assert "a model with experts from" in said
                assert said.endswith("Load it under the placement that saved it")


def test_a_search_leaves_every_rank_some(world2, stock, tmp_path):
    """The fastest placement has layer 0 alone on its rank."""
    options = at(1, 5)
    profile = write_profile(tmp_path / "profile.json", [2000] + [100] * (LAYERS - 1))
    wanted = {"time_limit": 1, "max_chunks": 1}
    section = {"profile": str(profile), "search": wanted, "output": str(tmp_path / "out")}
    theirs = stock(world2, options, trained)
    ours = world2.run(in_both_starts, trained, replace(options, section=section))
    assert ours[0]["losses"] == theirs[0]["losses"]
    assert "layers = [2, 8]" in (tmp_path / "out" / "placement.toml").read_text()


def rules(options: Options) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.rule, one.layers) for one in spread_experts(make_engine(options).module)]


def test_a_later_search_obeys_the_same(world2, section):
    """Layers have moved by then."""
    for under in (None, section):
        assert world2.run(rules, replace(at(1, 5), section=under)) == [[("spread", (1, 5))]] * 2


@pytest.mark.parametrize(("layers", "has", "lacks"), [((1, 6), 0, 1), ((4, 5), 1, 0)])
def test_a_rank_without_experts(world2, section, layers, has, lacks):
    said = world2.run(refused, replace(at(*layers), section=section))
    assert said[0] == said[1]
    assert said[0].startswith(
        f"under this placement rank {has} has layers of experts (deepspeed.moe, ep_size 1), and rank {lacks} has none"
    )
