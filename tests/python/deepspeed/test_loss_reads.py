# SPDX-License-Identifier: Apache-2.0
"""Layers that stay in one stage: with a loss function that reads what a layer has stored on the model, and where
they pass on more than tensors."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.start.loss_reads import LossReads
from support import random_model, training
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support.random_model import LAYERS
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options

STORES = 5  # the function


class Storing:
    """`change` says what the model stores and reads."""

    layers_of, micro_batches = staticmethod(random_model.layers_of), staticmethod(random_model.micro_batches)
    loss = None

    @staticmethod
    def module(layers, *, loss_fn, **more):
        from deepspeed.pipe import PipelineModule

        class Model(PipelineModule):
            mask = extra = None

            def __init__(self):
                layers[STORES] = self.store
                super().__init__(layers, loss_fn=self.own_loss, **more)

            def store(self, hidden):
                if self.mask is None:  # as on any rank
                    self.mask = torch.ones(())
                self.extra = hidden.square().mean()
                return hidden

            def own_loss(self, made, targets):
                assert self.extra is not None
                return random_model.loss(made, targets) * self.mask + 0.1 * self.extra

        return Model()


def pack(hidden):
    return {"hidden": torch.tanh(hidden)}


def unpack(packed):
    return torch.sin(packed["hidden"])


class Packing:
    """A dictionary passes from layer 5 to layer 6, within a stage of DeepSpeed's."""

    layers_of, micro_batches = staticmethod(random_model.layers_of), staticmethod(random_model.micro_batches)
    loss = staticmethod(random_model.loss)

    @staticmethod
    def module(layers, **more):
        from deepspeed.pipe import PipelineModule

        layers[STORES : STORES + 2] = pack, unpack
        return PipelineModule(layers, **more)


training.MODELS |= {"storing": Storing(), "packing": Packing()}
BASE = Options(model="storing", steps=3)
COSTS = [100] * STORES + [1000] * (LAYERS - STORES)  # which a search would divide


def alone(options: Options) -> dict:
    return training.train(options)


def trains(options: Options, costs: str) -> dict:
    """Under "auto", which measures what a plan may not do, and then searches for these costs."""
    from ostinato.deepspeed.start import first_pass

    measured, profile = first_pass._profile, json.loads(costs)

    def restricted(*given) -> str:
        made = measured(*given)
        return made and json.dumps(profile | {"restrictions": json.loads(made)["restrictions"]})

    first_pass._profile = restricted
    try:
        return training.train(options)
    finally:
        first_pass._profile = measured


def stages(folder: Path) -> list[list[int]]:
    return [stage["layers"] for stage in tomllib.loads((folder / "placement.toml").read_text())["stages"]]


@pytest.mark.parametrize("interval", everyday([0, 1], 1))
def test_a_search_keeps_them_in_one_stage(world2, stock, tmp_path, interval):
    options = replace(BASE, checkpoint_interval=interval)
    costs = write_profile(tmp_path / "profile.json", COSTS).read_text()
    section = {"auto": True, "search": {"time_limit": 1}, "output": str(tmp_path / "out")}
    theirs, ours = stock(world2, options, alone), world2.run(trains, replace(options, section=section), costs)
    for rank in range(2):
        same = ("losses", "last", "evaluation")
        assert {key: ours[rank][key] for key in same} == {key: theirs[rank][key] for key in same}
    assert stages(tmp_path / "out")[-1][0] <= STORES
    kept = json.loads((tmp_path / "out" / "profile.json").read_text())["restrictions"]
    why = f'the loss reads "extra", which layer {STORES} stores on the model'
    assert [(one["rule"], one["layers"], one["reason"]) for one in kept] == [("one_stage", [5, 6, 7], why)]


def test_a_search_cuts_nowhere_where_a_dictionary_passes(world2, stock, tmp_path):
    options = replace(BASE, model="packing")
    costs = write_profile(tmp_path / "profile.json", COSTS).read_text()
    section = {"auto": True, "search": {"time_limit": 1}, "output": str(tmp_path / "out")}
    theirs, ours = stock(world2, options, alone), world2.run(trains, replace(options, section=section), costs)
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]
    assert STORES + 1 not in dict(stages(tmp_path / "out"))  # where no stage begins
    (kept,) = json.loads((tmp_path / "out" / "profile.json").read_text())["restrictions"]
    assert kept == {"rule": "one_stage", "layers": [5, 6], "reason": "layer 5 returns a dict"}


def test_the_last_layer_is_with_the_loss_in_any_plan():
    seen = object.__new__(LossReads)
    seen._model, seen._forwards = SimpleNamespace(_num_layers=3), 1
    seen._read = {(1, "extra"): {0}, (2, "more"): {0}}
    assert [one.layers for one in seen.together()] == [(1, 2)]


def test_a_plan_that_divides_them_is_refused(world2, tmp_path):
    plan = str(make_plan(tmp_path, Layout("looped", (2, 4, 6), (0, 1, 0, 1)), LAYERS, MICRO_BATCHES))
    for said in world2.run(refused, replace(BASE, section={"plan": plan, "check": 1})):
        assert said == (
            'Unsupported: the plan has layer 5 and the loss in different stages, but the loss reads "extra", which layer 5 stores on the '
            'model: make a plan with both in one, as "auto" does'
        )


def refused(options: Options) -> str:
    try:
        training.train(options)
    except OstinatoError as error:
        return f"{type(error).__name__}: {error}"
    return ""
