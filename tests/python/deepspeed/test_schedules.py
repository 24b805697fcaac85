# SPDX-License-Identifier: Apache-2.0
"""Schedules of learning rates over groups of the optimizer that differ from rank to rank under a plan."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.save import lr_schedule
from support import models
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_model, weights

ALONE = Layout("alone", (1,), (0, 1))  # rank 0 has the embedding alone, and so no vectors
ZERO_1 = {"zero_optimization": {"stage": 1}}


def trained(options: Options) -> dict:
    """Vectors and matrices, each with a rate that changes as it likes."""
    import deepspeed

    model = make_model(options)
    kinds = ([p for p in model.parameters() if (p.dim() > 1) is wanted] for wanted in (False, True))
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds], lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: 0.5**step, lambda step: 1 / (1 + step)]
    )
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=options.configuration()
    )
    engine.batches = models.micro_batches
    data = data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(3)]
    return {"losses": losses, "weights": weights(engine), "rates": schedule.get_last_lr()}


@pytest.mark.parametrize("config", [{}, ZERO_1])
def test_a_rank_without_a_group_keeps_the_rates_of_all_groups(world2, stock, tmp_path, config):
    options = Options(config=config, own_optimizer=True)
    plan = make_plan(tmp_path, ALONE, LAYERS, MICRO_BATCHES)
    ours = world2.run(trained, replace(options, section={"plan": str(plan)}))
    assert ours == stock(world2, options, trained)


def with_a_rate_for_each_layer(options: Options):
    import deepspeed

    model = make_model(options)
    groups: dict[str, dict] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[0]
        groups.setdefault(layer, {"params": [], "lr": 0.01 * (1 + int(layer)), "layer": layer})
        groups[layer]["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups.values(), lr=0.01)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step)),
        config=options.configuration(),
    )
    engine.batches = models.micro_batches
    return engine


def saved(options: Options, folder: str) -> None:
    engine = with_a_rate_for_each_layer(options)
    engine.train_batch(data_of(engine))
    engine.save_checkpoint(folder)


def loaded(options: Options, folder: str, how: dict[str, bool]) -> tuple[str, bool]:
    """What loading raises, and whether each layer still has its rate, divided by the schedule."""
    engine = with_a_rate_for_each_layer(options)
    raised = ""
    try:
        engine.load_checkpoint(folder, **how)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    engine.train_batch(data_of(engine))
    [step] = {round(0.01 * (1 + int(g["layer"])) / g["lr"], 6) for g in engine.optimizer.param_groups}
    return raised, step == int(step)


@pytest.mark.parametrize("saves", ["plan", "alone"])
def test_a_schedule_of_another_ranks_groups_is_not_loaded(world2, tmp_path, saves):
    """DeepSpeed takes it from the rank's own file, also where only weights are wanted."""
    wave = make_plan(tmp_path, Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)
    plan, alone = Options(section={"plan": str(wave)}, optimizer=None), Options(optimizer=None)
    first, second = (plan, alone) if saves == "plan" else (alone, plan)
    folder, weights_only = str(tmp_path / "saved"), {"load_optimizer_states": False}
    world2.run(saved, first, folder)
    for raised, right in world2.run(loaded, second, folder, weights_only):
        assert "for different parameter groups on each rank" in raised and right, raised
    without = weights_only | {"load_lr_scheduler_states": False}
    assert world2.run(loaded, second, folder, without) == [("", True)] * 2
    assert world2.run(loaded, first, folder, weights_only) == [("", True)] * 2


def test_equal_rates_for_another_number_of_groups_are_refused(monkeypatch):
    """torch would fail at a later step: zip() argument 2 is longer than argument 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    engine = SimpleNamespace(lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
    both = engine.lr_scheduler.state_dict() | {"base_lrs": [0.1, 0.001]}
    monkeypatch.setattr(lr_schedule, "everyones", lambda mine: [mine, (mine[0], [0.001])])
    monkeypatch.setattr(lr_schedule, "_held_by_writers", lambda folder, alone: alone)
    with (
        pytest.raises(
            OstinatoError, match="schedule for 2 parameter groups, and rank 0 has 1: load_checkpoint"
        ),
        lr_schedule.of_same_groups(engine, Path("saved"), {"layers": [[0], [1]]}, {}),
    ):
        engine.lr_scheduler.load_state_dict(both)
    assert engine.lr_scheduler.base_lrs == [0.1]


def test_rates_are_found_within_schedules_of_several():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    kinds = torch.optim.lr_scheduler
    parts = [kinds.ConstantLR(optimizer), kinds.ExponentialLR(optimizer, 0.9)]
    for several in (kinds.SequentialLR(optimizer, parts, [2]), kinds.ChainedScheduler(parts)):
        assert lr_schedule._rates(several) == lr_schedule._rates(several.state_dict()) == [0.1]
    assert lr_schedule._rates(SimpleNamespace()) is None
