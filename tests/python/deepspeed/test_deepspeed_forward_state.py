# SPDX-License-Identifier: Apache-2.0
"""Buffers that forwards write to, where a plan recomputes them; and what a script does after initialize(),
where ranks start again."""

import functools
import io
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
from ostinato.buffers import Buffers
from support import changed_model
from support.changed_model import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.profiles import write_profile
from support.tiers import everyday
from support.training import (
    MICRO_BATCHES,
    Options,
    data_of,
    in_both_starts,
    make_engine,
    train,
    train_with_costs,
    weights,
)
from test_deepspeed_changed import WAVE

BASE = Options(model="changed", optimizer="SGD", steps=3)


def test_recomputed_once(world2, stock, tmp_path):
    """BatchNorm's statistics."""
    options = BASE
    text = placement_text(WAVE, LAYERS)
    for stage in range(4):
        text = text.replace(f'name = "s{stage}"\nlayers', f'name = "s{stage}"\nrecompute = true\nlayers')
    plan = str(make_plan(tmp_path, WAVE, LAYERS, MICRO_BATCHES, text=text))
    theirs, ours = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (ours["losses"], ours["evaluation"], ours["last"]) == (
        theirs["losses"],
        theirs["evaluation"],
        theirs["last"],
    )


def layers_changed(engine):
    for name in ("closure_hook", "parameter_attribute", "dropout_off", "momentum", "gradient_hook"):
        changed_model.change(engine.module, name)


def options_changed(engine):
    for group in engine.optimizer.param_groups:
        group["lr"], group["momentum"] = 0.2, 0.5
    engine.optimizer.register_step_post_hook(
        lambda optimizer, *_: optimizer.param_groups[0].update(weight_decay=0.1)
    )


def schedule_moved(engine):
    engine.lr_scheduler.step(5)


def batches_changed(engine):
    engine.set_batch_fn(lambda batch: (batch[0] * 2, batch[1]))


def step_wrapped(engine):
    """Around one that a scheduler counts, which the script has dropped. What it reads lies on the optimizer."""
    # ZeRO wraps one.
    torch.optim.lr_scheduler.ExponentialLR(getattr(engine.optimizer, "optimizer", engine.optimizer), 0.9)
    step, engine.optimizer.bound = engine.optimizer.step, 0.01

    @functools.wraps(step)
    def clipped(*args, **kwargs):
        for parameter in (
            p for group in engine.optimizer.param_groups for p in group["params"] if p.grad is not None
        ):
            parameter.grad.clamp_(-engine.optimizer.bound, engine.optimizer.bound)
        return step(*args, **kwargs)

    engine.optimizer.step = clipped


def schedule_wrapped(engine):
    step, groups = engine.lr_scheduler.step, engine.optimizer.param_groups

    def halved(*args, **kwargs):
        step(*args, **kwargs)
        for group in groups:
            group["lr"] *= 0.5

    engine.lr_scheduler.step = halved


def groups_held(engine):
    """They are given rates after each step."""
    groups, first = engine.optimizer.param_groups, engine.optimizer.param_groups[0]

    def decay():
        first["momentum"] = 0.5
        for group in groups:
            group["lr"] = 0.05 / (engine.global_steps + 1)

    return decay


def scheduler_of_torch(engine):
    return torch.optim.lr_scheduler.ExponentialLR(engine.optimizer, 0.5).step


def methods_held(engine):
    step, evaluate = engine.train_batch, engine.eval_batch
    engine.train_batch = lambda data: 2 * step(data)
    return lambda: evaluate(engine.batches(99)).item()


OF_OPTIMIZERS = (
    options_changed,
    step_wrapped,
    schedule_wrapped,
    groups_held,
    scheduler_of_torch,
    methods_held,
)
BETWEEN = {f.__name__: f for f in (layers_changed, schedule_moved, batches_changed, *OF_OPTIMIZERS)}
ZERO = {"zero_optimization": {"stage": 1}}
SCHEDULE = {
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 8},
    }
}


def trained(options: Options) -> dict:
    """With what options.change names done between initialize() and the first step; what it returns is called
    after each step."""
    engine, losses, after = make_engine(options), [], []
    then = BETWEEN[options.change](engine) if options.change in BETWEEN else None
    data = data_of(engine)
    for _ in range(options.steps):
        losses.append(engine.train_batch(data).item())
        after.append(then() if then else None)
    return {
        "losses": losses,
        "after": after,
        "last": weights(engine),
        "kind": type(engine).__mro__[1].__name__,
    }


CHANGES = [("", {}), *((change, {}) for change in BETWEEN), ("groups_held", ZERO), ("step_wrapped", ZERO)]


@pytest.mark.parametrize(("change", "zero"), everyday(CHANGES, ("step_wrapped", ZERO)))
def test_auto_trains_what_the_script_trains(world2, tmp_path, change, zero):
    """The second start does it again; measuring leaves no trace."""
    options = replace(BASE, change=change, config=SCHEDULE if change.startswith("schedule_") else zero)
    profile = write_profile(tmp_path / "profile.json", [100] * 4 + [300] * (LAYERS - 4))
    section = {"auto": True, "search": {"time_limit": 1}, "output": str(tmp_path)}
    theirs = world2.run(trained, options)
    ours = world2.run(train_with_costs, replace(options, section=section), profile.read_text(), trained)
    assert "layers = [0, 4]" not in (tmp_path / "placement.toml").read_text()  # layers have moved
    for got, expected in zip(ours, theirs, strict=True):
        assert (
            got["kind"] == "PlanEngine"
            and got["losses"] == expected["losses"]
            and got["last"] == expected["last"]
        )
        assert got["after"] == expected["after"]


def trained_and_told(options: Options) -> dict:
    said = io.StringIO()
    with redirect_stdout(said):
        result = train(options)
    return result | {"said": said.getvalue().splitlines()}


@pytest.mark.parametrize(("method", "told"), [("1f1b", False), ("gpipe", True)])
def test_statistics_that_checkpointing_counts_twice(world2, stock, tmp_path, method, told):
    """DeepSpeed's checkpointing runs a BatchNorm's forward again in its backward: what it averages depends on
    their order."""
    options = replace(BASE, checkpoint_interval=1, config={"pipeline": {"use_reentrant": False}})
    plan = str(
        make_plan(tmp_path, Layout("chain", (LAYERS // 2,), (0, 1)), LAYERS, MICRO_BATCHES, method=method)
    )
    theirs = stock(world2, options)[0]
    ours = world2.run(trained_and_told, replace(options, section={"plan": plan}))[0]
    assert ours["losses"] == theirs["losses"] and (ours["evaluation"] != theirs["evaluation"]) is told
    assert any("evaluations that use them, differ" in line for line in ours["said"]) is told


def test_check_excepts_statistics_that_checkpointing_counts_twice(world2, tmp_path):
    options = replace(BASE, checkpoint_interval=1, config={"pipeline": {"use_reentrant": False}})
    layout = Layout("chain", (LAYERS // 2,), (0, 1))
    plan = str(make_plan(tmp_path, layout, LAYERS, MICRO_BATCHES, method="gpipe"))
    checked = replace(options, section={"plan": plan, "check": 1})
    said = world2.run(in_both_starts, trained_and_told, checked)[0]["said"]
    assert any("evaluations that use them, differ" in line for line in said)
    measured = [line for line in said if "measured: step 1" in line]
    assert len(measured) == 1 and "bit for bit (" in measured[0]
    assert measured[0].endswith(", to which a recomputed forward writes)")


def test_buffers_are_compared_by_value():
    layer = torch.nn.Module()
    kinds = {
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "expanded": torch.ones(1).expand(4),
        "undefined": torch.full((2,), torch.nan),
        "empty": torch.zeros(0),
        "count": torch.tensor(0),
        "mask": torch.eye(3, dtype=torch.bool),
        "sparse": torch.eye(3).to_sparse(),
    }
    for name, kind in kinds.items():
        layer.register_buffer(name, kind)
    buffers = Buffers({3: layer})
    before = buffers.now()
    assert buffers.changed(before) == []
    layer.turned[0, 1] += 1
    layer.count += 1
    layer.sparse = 2 * layer.sparse
    layer.register_buffer("late", torch.zeros(2))
    assert buffers.changed(before) == ["3.turned", "3.count", "3.sparse", "3.late"]
    buffers.restore(before)
    assert buffers.changed(before) == [] and not hasattr(layer, "late")
