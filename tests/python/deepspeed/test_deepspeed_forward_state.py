# SPDX-License-Identifier: Apache-2.0
"""What forwards change in layers: once where a plan recomputes them, and not at all by what "auto" measures."""

import functools
import io
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from support import changed_model
from support.changed_model import LAYERS
from support.plans import make_plan, placement_text
from support.profiles import write_profile
from support.training import MICRO_BATCHES, Options, data_of, make_engine, train, train_with_costs, weights
from test_deepspeed_changed import WAVE

BASE = Options(model="changed", optimizer="SGD", steps=3)


@pytest.mark.parametrize("change", ["", "counting"], ids=["statistics", "counters"])
def test_recomputed_once(world2, stock, tmp_path, change):
    """BatchNorm's statistics, and attributes and lists that move on with each forward."""
    options = replace(BASE, change=change)
    text = placement_text(WAVE, LAYERS)
    for stage in range(4):
        text = text.replace(f'name = "s{stage}"\nlayers', f'name = "s{stage}"\nrecompute = true\nlayers')
    plan = str(make_plan(tmp_path, WAVE, LAYERS, MICRO_BATCHES, text=text))
    theirs, ours = stock(world2, options)[0], world2.run(train, replace(options, section={"plan": plan}))[0]
    assert (ours["losses"], ours["evaluation"], ours["last"]) == (theirs["losses"], theirs["evaluation"], theirs["last"])


def layers_changed(engine):
    for name in ("closure_hook", "parameter_attribute", "dropout_off", "momentum", "gradient_hook"):
        changed_model.change(engine.module, name)


def options_changed(engine):
    for group in engine.optimizer.param_groups:
        group["lr"], group["momentum"] = 0.2, 0.5
    engine.optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.param_groups[0].update(weight_decay=0.1))


def schedule_moved(engine):
    engine.lr_scheduler.step(5)


def batches_changed(engine):
    engine.set_batch_fn(lambda batch: (batch[0] * 2, batch[1]))


def step_wrapped(engine):
    """Around one that a scheduler counts, which the script has dropped. What it reads lies on the optimizer."""
    torch.optim.lr_scheduler.ExponentialLR(getattr(engine.optimizer, "optimizer", engine.optimizer), 0.9)  # ZeRO wraps one
    step, engine.optimizer.bound = engine.optimizer.step, 0.01

    @functools.wraps(step)
    def clipped(*args, **kwargs):
        for parameter in (p for group in engine.optimizer.param_groups for p in group["params"] if p.grad is not None):
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


MADE_ANEW = (options_changed, step_wrapped, schedule_wrapped, groups_held, scheduler_of_torch, methods_held)
BETWEEN = {f.__name__: f for f in (layers_changed, schedule_moved, batches_changed, *MADE_ANEW)}
ZERO = {"zero_optimization": {"stage": 1}}
SCHEDULE = {"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 8}}}


def trained(options: Options) -> dict:
    """With what options.change names done between initialize() and the first step; what it returns is called after each step."""
    engine, losses, after = make_engine(options), [], []
    then = BETWEEN[options.change](engine) if options.change in BETWEEN else None
    data = data_of(engine)
    for _ in range(options.steps):
        losses.append(engine.train_batch(data).item())
        after.append(then() if then else None)
    return {"losses": losses, "after": after, "last": weights(engine), "kind": type(engine).__mro__[1].__name__}


@pytest.mark.parametrize(("change", "zero"), [("", {}), ("counting", {}), *((change, {}) for change in BETWEEN), ("groups_held", ZERO), ("step_wrapped", ZERO)])
def test_auto_begins_where_the_script_left_off(world2, tmp_path, change, zero):
    """Measuring leaves no trace, and what the script did since initialize() is there when the plan runs."""
    options = replace(BASE, change=change, config=SCHEDULE if change.startswith("schedule_") else zero)
    profile = write_profile(tmp_path / "profile.json", [100] * 4 + [300] * (LAYERS - 4))
    section = {"auto": True, "search": {"time_limit": 1}, "output": str(tmp_path)}
    theirs = world2.run(trained, options)
    ours = world2.run(train_with_costs, replace(options, section=section), profile.read_text(), trained)
    assert "layers = [0, 4]" not in (tmp_path / "placement.toml").read_text()  # layers have moved
    for got, expected in zip(ours, theirs, strict=True):
        assert got["kind"] == "PlanEngine" and got["losses"] == expected["losses"] and got["last"] == expected["last"]
        assert got["after"] == expected["after"]


def measured_on(rank: int, options: Options) -> str:
    """What is said where measuring has left something on that rank."""
    from ostinato.deepspeed.forward_state import ForwardState

    lost, printed = ForwardState.lost, io.StringIO()
    left = ["layer 5: something"] * (dist.get_rank() == rank)
    ForwardState.lost = lambda *_: [left.pop()] if left else []  # once
    try:
        with redirect_stdout(printed):
            engine = make_engine(options)
            engine.train_batch(data_of(engine))
    finally:
        ForwardState.lost = lost
    return printed.getvalue()


@pytest.mark.parametrize("rank", [None, 1])
def test_what_measuring_leaves_on_one_rank_is_in_the_verdict_of_all(world2, rank):
    options = replace(BASE, section={"auto": True, "search": {"time_limit": 1}})
    said, others = world2.run(functools.partial(measured_on, rank), options)
    assert ("equal to 1F1B" in said) is (rank is None)
    assert said.count("measuring has changed what rank 1 named") == (0 if rank is None else 1 + said.count("step 1 has shown"))
    assert ("rank 1: measuring ran forwards, and these" in others) is (rank == 1)


def announced(options: Options) -> str:
    """What this rank says after its first step of how the numbers relate to 1F1B's."""
    from ostinato.deepspeed import announce

    said, original = [], announce.shown
    announce.shown = lambda relation: said.append(relation) or original(relation)
    try:
        engine = make_engine(options)
        engine.train_batch(data_of(engine))
    finally:
        announce.shown = original
    return " ".join(said)


@pytest.mark.parametrize("change", ["", "counting"], ids=["statistics", "counters"])
def test_own_checkpointing_that_changes_layers_is_named(world2, tmp_path, change):
    """DeepSpeed's own counts a forward twice, as it does alone; when is the plan's."""
    plan = str(make_plan(tmp_path, WAVE, LAYERS, MICRO_BATCHES))
    options = replace(BASE, change=change, checkpoint_interval=1, section={"plan": plan}, config={"pipeline": {"use_reentrant": False}})
    words = 'layer {}: its attribute "calls"' if change else '"norm.running_mean" of layer {}'
    first, second = world2.run(announced, options)
    assert all(words.format(layer) in first for layer in (2, 5)) and "bit for bit" not in first and not second
