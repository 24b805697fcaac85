# SPDX-License-Identifier: Apache-2.0
"""The optimizer's step: which one DeepSpeed would take, and what a layer's part of it is."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.profile.machine.device import Cpu
from ostinato.profile.measure.optimizer import StepClock, kind_of
from ostinato.profile.model.job import Job
from ostinato.profile.run import profile_layers
from ostinato.profile.settings import read_settings
from ostinato.profile.views.table import block_lines

ADAM = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}


def clock(config, optimizer=None, device=None, ranks=1):
    return StepClock.of(config, optimizer, read_settings(config, optimizer, ranks=ranks), device or Cpu())


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (ADAM, torch.optim.AdamW),  # DeepSpeed's default
        ({"type": "Adam", "params": {"torch_adam": True, "adam_w_mode": False}}, torch.optim.Adam),
        ({"type": "AdamW", "params": {"torch_adam": True, "adam_w_mode": False}}, torch.optim.AdamW),
        ({"type": "Adam", "params": {"lr": 1}}, None),  # one of DeepSpeed's own
        ({"type": "Adagrad"}, torch.optim.Adagrad),
        ({"type": "SGD", "params": {"lr": 1, "momentum": 0.5}}, torch.optim.SGD),
        ({"type": "OneBitAdam"}, None),
        ({"type": "muon"}, None),
        ({"type": "Muon", "params": {"lr": 1}}, None),  # torch has one, too
        ({}, None),
    ],
)
def test_the_optimizer_is_deepspeeds_choice(optimizer, kind):
    found, options = kind_of({"optimizer": optimizer} if optimizer else {}, None)
    assert found is kind and "torch_adam" not in options and "adam_w_mode" not in options


class Own(torch.optim.SGD):
    pass


def test_a_scripts_own_optimizer():
    made = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.5, betas=(0.1, 0.2))
    kind, options = kind_of({"optimizer": {"type": "SGD"}}, made)
    assert kind is torch.optim.AdamW and options["lr"] == 0.5 and options["betas"] == (0.1, 0.2)
    assert kind_of({}, Own([nn.Parameter(torch.zeros(1))], lr=1)) == (None, {})  # what it does is not known


@pytest.mark.parametrize(
    "optimizer",
    [
        *(
            {"type": name}
            for name in (
                "Optimizer",
                "lr_scheduler",
                "swa_utils",
                "__name__",
                "",
                None,
                5,
                "sgd",
                "LBFGS",
                "SparseAdam",
                "Muon",
            )
        ),
        *(
            {"type": "SGD", "params": params}
            for params in ({"lr": -1}, {"lr": "auto"}, {"lr": 1, "differentiable": True})
        ),
        None,
        {"type": "Adagrad", "params": {"lr": [1]}},
    ],
)
def test_what_cannot_be_measured_fails_no_profile(optimizer):
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    made = profile_layers(
        Job(layers, torch.ones(2, 4), config={"optimizer": optimizer}, repeats=2, warm_up=1)
    )
    assert len(made.layers) == 2 and not any(row.step_time for row in made.layers)


@pytest.mark.parametrize("made", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_a_scripts_optimizer_that_wants_more_than_a_step(made):
    assert clock({}, made([nn.Parameter(torch.ones(2))])).time([nn.Parameter(torch.ones(2))], 1, 2) == 0


def test_a_norm_that_is_still_to_be_set_clips_nothing():
    sgd = {"optimizer": {"type": "SGD", "params": {"lr": 1}}, "gradient_clipping": "auto"}
    assert clock(sgd).time([nn.Parameter(torch.ones(2))], 1, 2) > 0
    assert clock(sgd).time([nn.Parameter(torch.ones(2, device="meta"))], 1, 2) == 0


@pytest.mark.parametrize(
    "config",
    [{}, {"gradient_clipping": 1.0}, {"bf16": {"enabled": True}}, {"zero_optimization": {"stage": 1}}],
)
def test_parameters_stay_as_they_are(config):
    layer = nn.Linear(3, 3, dtype=torch.bfloat16 if "bf16" in config else None)
    before, state = copy.deepcopy(layer.state_dict()), torch.get_rng_state()
    assert clock({"optimizer": ADAM, **config}).time(list(layer.parameters()), 1, 3) > 0
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(p.grad is None for p in layer.parameters()) and torch.equal(torch.get_rng_state(), state)


class Ticks(Cpu):
    """Its clock counts the parameters that optimizers have stepped."""

    def __init__(self):
        self.stepped = 0

    def now(self):
        return self.stepped


@pytest.mark.parametrize(("config", "parameters"), [({}, 2), ({"bf16": {"enabled": True}}, 1)])
def test_one_step_of_all_its_parameters_is_timed(monkeypatch, config, parameters):
    """Of one flat copy where DeepSpeed keeps such a one."""
    device, whole = Ticks(), torch.optim.SGD.step

    def step(self):
        device.stepped += sum(len(group["params"]) for group in self.param_groups)
        return whole(self)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    of_sgd = {"optimizer": {"type": "SGD", "params": {"lr": 1}}, **config}
    assert clock(of_sgd, device=device).time(list(nn.Linear(3, 3).parameters()), 2, 4) == parameters
    assert device.stepped == parameters * 6
    assert (
        clock(of_sgd, device=device).time([], 2, 4) == 0
        and clock({}, device=device).time([nn.Parameter(torch.ones(1))], 1, 1) == 0
    )


def test_ranks_among_which_zero_divides_the_step_take_a_share_each(monkeypatch):
    monkeypatch.setattr(StepClock, "_time", lambda _, some, *__: 5 * sum(one.numel() for one in some))
    parameters = [nn.Parameter(torch.zeros(64, 8))]
    times = [
        clock({"optimizer": ADAM} | config, ranks=4).time(parameters, 1, 1)
        for config in ({}, {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}})
    ]
    assert times == [5 * 512, 5 * 128, 5 * 128]


def test_a_step_that_does_not_fit_is_measured_on_a_part(monkeypatch, capfd):
    parameters = [nn.Parameter(torch.zeros(64, 8)), nn.Parameter(torch.zeros(64))]
    known, seen = clock({"optimizer": ADAM}), []

    def time(self, some, warm_up, repeats):
        seen.append([tuple(one.shape) for one in some])
        if sum(one.numel() for one in some) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 5 * sum(one.numel() for one in some)

    monkeypatch.setattr(StepClock, "_time", time)
    room = 40
    assert known.time(parameters, 1, 1) == 5 * 64 * 9
    assert seen == [[(64, 8), (64,)], [(16, 8), (16,)], [(4, 8), (4,)]]
    room = 0  # not even a part: as layers before
    assert known.time(parameters, 1, 1) == 5 * 64 * 9
    assert capfd.readouterr().err.count("does not fit into memory") == 1
    assert clock({"optimizer": ADAM}).time(parameters, 1, 1) == 0


def test_a_profile_has_it_by_layer():
    frozen = nn.Linear(8, 8).requires_grad_(False)
    layers = [nn.Linear(8, 8), nn.ReLU(), frozen, nn.Linear(8, 8)]
    made = profile_layers(Job(layers, torch.ones(2, 8), config={"optimizer": ADAM}, repeats=2, warm_up=1))
    assert [row.step_time > 0 for row in made.layers] == [True, False, False, True]
    assert [row.get("step_time", 0) for row in json.loads(made.json())["layers"]] == [
        row.step_time for row in made.layers
    ]
    without = profile_layers(Job(layers, torch.ones(2, 8), repeats=2, warm_up=1))
    assert not any(row.step_time for row in without.layers) and "step_time" not in without.json()


def test_what_is_said():
    rank = SimpleNamespace(forward=0, backward=0, read=0, step_time=0, average=0)
    layers = [SimpleNamespace(step_time=1_000_000), SimpleNamespace(step_time=540_000)]
    assert block_lines(SimpleNamespace(rank=rank, layers=layers)) == [
        "the optimizer's step takes 1.54 ms for all layers"
    ]
