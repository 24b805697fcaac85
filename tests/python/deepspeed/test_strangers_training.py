# SPDX-License-Identifier: Apache-2.0
"""What people's scripts do around a training: equal bits, or a difference that was announced, or a refusal by
name."""

import io
import json
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from deepspeed.runtime.pipe import schedule
from ostinato.deepspeed.data.same_data import digest
from ostinato.deepspeed.start.second_start import NeedsNewStart
from support.plans import Layout, make_plan
from support.strangers import LAYERS, WIDTH
from support.tiers import everyday
from support.training import MICRO_BATCHES, MODELS, data_of, make_model, weights
from test_deepspeed_features import fp16_on_a_processor
from test_strangers import BASE, LAYOUTS, after_initialize, nothing, same
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    return {
        "plan": str(
            make_plan(tmp_path_factory.mktemp("plan") / "wave", LAYOUTS["wave"], LAYERS, MICRO_BATCHES)
        ),
        "timeout_s": 20,
    }


def listed(model):
    return {"model_parameters": list(model.parameters())}


def trained(options, give=listed, feed=data_of, then=nothing) -> dict:
    """Losses, weights, what this rank said, and the error that ended it. `then`: between steps."""
    import deepspeed

    printed, losses, error = io.StringIO(), [], ""
    with redirect_stdout(printed):
        try:
            model = make_model(options)
            engine, *_ = deepspeed.initialize(model=model, config=options.configuration(), **give(model))
            engine.batches = MODELS[options.model].micro_batches
            data = feed(engine)
            for _ in range(options.steps):
                losses.append(engine.train_batch(data).item())
                then(engine)
        except NeedsNewStart:
            raise
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return {"losses": losses, "weights": {} if error else weights(engine), "said": said, "error": error}


# ---- optimizers


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def decayed(model):
    return [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() <= 1]


def named(model):
    return {"optimizer": adam(model.named_parameters())}


def named_groups(model):
    groups = [
        {
            "params": [(n, p) for n, p in model.named_parameters() if (p.dim() > 1) == many],
            "weight_decay": 0.1 * many,
        }
        for many in (True, False)
    ]
    return {"optimizer": adam(groups)}


def called(model):
    return {"optimizer": adam, "model_parameters": filter(lambda p: p.requires_grad, model.parameters())}


def of_the_model(model):
    return {"optimizer": lambda _: adam(model.parameters())}


def closed_over(model):
    held = list(model.parameters())
    return {"optimizer": lambda _: adam(held)}


def in_a_tuple(model):
    return {"model_parameters": tuple(model.parameters())}


def once_only(model):
    return {"model_parameters": iter(list(model.parameters()))}


def tuples_in_groups(model):
    return {"model_parameters": [{"params": tuple(part)} for part in decayed(model)]}


@pytest.mark.parametrize(
    "give",
    everyday([named, named_groups, called, of_the_model, closed_over], named_groups, called, closed_over),
)
def test_an_optimizer_however_it_is_made(world2, wave, give):
    options = replace(BASE, optimizer=None)
    theirs = world2.run(trained, options, give)
    ours = world2.run(trained, replace(options, section=wave), give)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


ZERO_1 = {"zero_optimization": {"stage": 1}}


def scheduled(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)}


@pytest.mark.parametrize(
    "give", everyday([in_a_tuple, once_only, tuples_in_groups], once_only, tuples_in_groups)
)
@pytest.mark.parametrize("config", everyday([{}, ZERO_1], ZERO_1), ids=["zero0", "zero1"])
def test_parameters_however_they_are_given(world2, wave, give, config):
    options = replace(BASE, config=config)
    theirs = world2.run(trained, options, give)
    ours = world2.run(trained, replace(options, section=wave), give)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def test_a_schedulers_counter_of_steps_is_none_of_them(world2, wave):
    options = replace(BASE, optimizer=None)
    theirs = world2.run(trained, options, scheduled)
    ours = world2.run(trained, replace(options, section=wave), scheduled)
    assert same(ours[0], theirs[0])


def asks_for_the_norm(engine):
    print(f"norm {engine.get_global_grad_norm()}")


@pytest.mark.parametrize(("config", "times"), [({"zero_optimization": {"stage": 1}}, 1), ({}, 0)])
def test_the_norm_of_gradients_is_summed_rank_by_rank(world2, wave, config, times):
    """What a script may ask for. DeepSpeed has none in fp32 without ZeRO."""
    options = replace(BASE, config=config, section=wave)
    ours = world2.run(trained, options, listed, data_of, asks_for_the_norm)
    assert [
        sum("get_global_grad_norm() sums rank by rank" in line for line in rank["said"]) for rank in ours
    ] == [times, 0]


def trained_with_own_clipping(options) -> dict:
    """As a trainer that has replaced DeepSpeed's clipping by the same in other words."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.utils import clip_grad_norm_

    def clip(engine):
        clip_grad_norm_(parameters=engine.module.parameters(), max_norm=0.1, mpu=engine.mpu)

    with patch.object(DeepSpeedEngine, "clip_fp32_gradients", clip):
        return trained(options)


def test_clipping_of_the_script_is_replaced_only_where_that_is_said(world2, wave):
    options = replace(BASE, config={"gradient_clipping": 0.1})
    theirs = world2.run(trained_with_own_clipping, options)
    ours = world2.run(trained_with_own_clipping, replace(options, section=wave))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]
    assert [sum("clip_fp32_gradients() is not" in line for line in rank["said"]) for rank in ours] == [1, 0]


def of_each_layer(model):
    """A rate for each layer, as fine-tuning has them: a rank has a group for each of its layers."""
    groups: dict[str, dict] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[0]
        groups.setdefault(layer, {"params": [], "lr": 0.5 * 0.9 ** int(layer)})["params"].append(parameter)
    return {"optimizer": torch.optim.SGD(groups.values(), lr=0.5)}


def keeps_the_norm(engine):
    engine.norms = [*getattr(engine, "norms", ()), float(engine.get_global_grad_norm())]
    print(f"ostinato: norms {engine.norms}")


UNEVEN = Layout("uneven", (1, 3, 5), (0, 1, 0, 1))  # 3 layers and 5


def trained_in_halves(options, *given):
    with fp16_on_a_processor():
        return trained(options, *given)


def halves_of(engine):
    data = data_of(engine)
    return data and (tuple(part.half() for part in item) for item in data)


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}


@pytest.mark.parametrize(("config", "feed"), [(ZERO_1, data_of), (FP16, halves_of)], ids=["zero1", "fp16"])
def test_ranks_with_different_numbers_of_groups(world2, tmp_path, config, feed):
    """ZeRO and fp16 sum the norm of one group after another over the ranks of a pipeline: one with fewer groups takes
    part, and gets the norm of all."""
    section = {"plan": str(make_plan(tmp_path, UNEVEN, LAYERS, MICRO_BATCHES)), "timeout_s": 20}
    options = replace(BASE, optimizer=None, config=config | {"gradient_clipping": 0.1})
    given = of_each_layer, feed, keeps_the_norm
    theirs, ours = (
        world2.run(trained_in_halves, replace(options, section=one), *given) for one in (None, section)
    )
    assert not theirs[0]["error"]
    for rank in ours:
        assert not rank["error"] and rank["losses"] == pytest.approx(theirs[0]["losses"], rel=1e-6)
    first, _, *both = [
        json.loads(rank["said"][-1].removeprefix("ostinato: norms ")) for rank in (*theirs, *ours)
    ]
    assert both[0] == both[1] == pytest.approx(first, rel=1e-6)


def factored(model):
    return {"optimizer": torch.optim.Adafactor(model.parameters(), lr=0.1)}


def test_an_optimizer_that_mixes_elements_is_a_condition(world2, wave):
    """ZeRO gives it all parameters of a rank as one tensor."""
    config = ZERO_1 | {"zero_allow_untested_optimizer": True}
    options = replace(BASE, optimizer=None, config=config, section=wave)
    [told] = (line for line in world2.run(trained, options, factored)[0]["said"] if "expected: " in line)
    assert "bit for bit, unless Adafactor updates elements by more than their own gradients" in told


# ---- layers


@pytest.mark.parametrize("change", ["attention", "checkpoint"])
def test_dropout_that_no_name_says_is_that_of_1f1b(world2, wave, change):
    options = replace(BASE, change=change)
    theirs, ours = world2.run(trained, options), world2.run(trained, replace(options, section=wave))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


# ---- the loss


def penalised(model):
    def loss(outputs, labels):
        error = torch.nn.functional.mse_loss(outputs, labels)
        if not outputs.requires_grad:
            return error
        (force,) = torch.autograd.grad(outputs.square().mean(), outputs, create_graph=True)
        return error + (force * outputs).sum()

    model.loss_fn = loss
    return listed(model)


def weighed(model):
    """The loss uses parameters that the script keeps on the model itself."""
    model.scale = torch.nn.Parameter(torch.full((WIDTH,), 1.5))
    model.calibration = torch.nn.Linear(WIDTH, WIDTH)
    model.loss_fn = lambda outputs, labels: torch.nn.functional.mse_loss(
        model.calibration(outputs) * model.scale, labels
    )
    return listed(model)


def takes_what_is_trained(engine, rank: int):
    """In the end: each rank has a copy, and the one that computes the loss trains it."""
    if engine.global_steps == BASE.steps:
        for own in (engine.module.scale, *engine.module.calibration.parameters()):
            torch.distributed.broadcast(own.data, rank)


@pytest.mark.parametrize("config", [{}, {"zero_optimization": {"stage": 1}}], ids=["", "zero1"])
def test_a_loss_with_parameters_of_the_model_is_clipped_as_in_1f1b(world2, wave, config):
    options = replace(BASE, config={"gradient_clipping": 0.1} | config)
    theirs, ours = (
        world2.run(
            trained,
            replace(options, section=section),
            weighed,
            data_of,
            partial(takes_what_is_trained, rank=rank),
        )
        for section, rank in ((None, 1), (wave, 0))
    )
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def shared_scale(model):
    """Each layer uses a parameter of the model: every rank trains a copy."""
    model.scale = torch.nn.Parameter(torch.ones(1))
    for layer in model.forward_funcs:
        layer.register_forward_hook(lambda _module, _inputs, made: made * model.scale)
    return listed(model)


def test_a_parameter_that_several_ranks_train_is_not_clipped(world2, wave):
    for rank in world2.run(
        trained, replace(BASE, config={"gradient_clipping": 0.1}, section=wave), shared_scale
    ):
        assert '"scale" belongs to no layer, and gets gradients on 2 ranks' in rank["error"]


def test_a_loss_that_takes_gradients_of_its_inputs(world2, wave):
    """Under ZeRO DeepSpeed divides them by the accumulation steps, and a plan does as well. (Without ZeRO
    DeepSpeed refuses such a loss.)"""
    options = replace(BASE, config=ZERO_1)
    theirs = world2.run(trained, options, penalised)
    ours = world2.run(trained, replace(options, section=wave), penalised)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


# ---- passes


def replaced(engine, command):
    commands = engine._INSTRUCTION_MAP
    engine._INSTRUCTION_MAP = {**commands, command: lambda self, **given: commands[command](self, **given)}


def its_backwards(engine):
    replaced(engine, schedule.BackwardPass)


def its_forwards(engine):
    replaced(engine, schedule.ForwardPass)


def forward_of_its_model(engine):
    engine.module.forward = lambda *given: type(engine.module).forward(engine.module, *given)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (its_backwards, "Unsupported: engine._INSTRUCTION_MAP[BackwardPass]"),
        (its_forwards, "the script has its own forward pass, which 1F1B runs once"),
        (forward_of_its_model, " has its own forward(), which 1F1B runs once"),
    ],
)
def test_passes_of_one_engine_are_refused(world2, wave, change, why):
    for rank in world2.run(after_initialize, replace(BASE, section=wave), change):
        assert why in rank["error"] and not rank["losses"]


def its_backwards_on_one_rank(engine):
    if engine.global_rank == 1:
        its_backwards(engine)


def test_passes_of_one_engine_are_refused_before_its_first_step(world2, wave):
    """The step under DeepSpeed's own schedule would be for nothing."""
    for rank in world2.run(
        after_initialize, replace(BASE, section=wave | {"check": 1}), its_backwards_on_one_rank
    ):
        assert rank["error"].startswith("Unsupported: engine._INSTRUCTION_MAP[BackwardPass]")
        assert not rank["losses"]


def its_methods(engine):
    """DeepSpeed calls what its map of instructions holds, and none of these."""

    def nothing_of_it(*_, **__):
        raise AssertionError

    for name in (
        "_exec_forward_pass",
        "_exec_load_micro_batch",
        "_exec_reduce_grads",
        "_exec_optimizer_step",
    ):
        setattr(engine, name, nothing_of_it)


def test_methods_that_deepspeed_does_not_call_are_not_called(world2, wave):
    theirs = world2.run(after_initialize, BASE, its_methods)
    ours = world2.run(after_initialize, replace(BASE, section=wave), its_methods)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def doubled(engine):
    engine.micro_batches = 2 * MICRO_BATCHES


def test_another_number_of_micro_batches_is_refused(world2, wave):
    for rank in world2.run(trained, replace(BASE, section=wave), listed, data_of, doubled):
        assert (
            "engine.micro_batches is 8, but the plan is for 4" in rank["error"] and len(rank["losses"]) == 1
        )


# ---- data


def its_own(engine):
    """Each rank has what DeepSpeed's schedule needs of it."""
    first = engine.global_rank == 0
    return ((x if first else 0 * x, 0 * y if first else y) for x, y in engine.batches(7))


def as_asked(engine):
    return (
        (x if engine.is_first_stage() else 0 * x, y if engine.is_last_stage() else 0 * y)
        for x, y in engine.batches(7)
    )


def everywhere(engine):
    return engine.batches(7)


def other_labels(engine):
    """By set_dataloader()."""
    generator = torch.Generator().manual_seed(engine.global_rank)
    made = [torch.randn(3 * MICRO_BATCHES * BASE.steps, WIDTH, generator=generator) for _ in range(2)]
    engine.set_dataloader(DataLoader(TensorDataset(*made), batch_size=3))


@pytest.mark.parametrize("feed", [its_own, other_labels])
def test_labels_of_another_rank_are_said(world2, wave, feed):
    theirs = world2.run(trained, BASE, listed, feed)
    ours = world2.run(trained, replace(BASE, section=wave), listed, feed)
    assert not same(ours[0], theirs[0])
    assert "takes labels from the data iterator of rank 0, 1F1B from that of rank 1" in ours[0]["said"][-1]


def drawn_where_it_begins(engine):
    torch.manual_seed(4)
    made = [torch.randn(3 * MICRO_BATCHES * 2, WIDTH) for _ in range(2)]
    engine.set_dataloader(DataLoader(TensorDataset(*made), batch_size=3, shuffle=True))


def where_it_is_read(engine):
    """None elsewhere, as DeepSpeed's middle stages may get."""
    made = [torch.randn(3 * MICRO_BATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(4))] * 2
    reads = engine.is_first_stage() or engine.is_last_stage()
    loader = DataLoader(TensorDataset(*made), batch_size=3, generator=torch.Generator())
    engine.set_dataloader(loader if reads else None)


def made_where_it_is_read(engine):
    """A loader that shuffles."""
    made = [torch.randn(3 * MICRO_BATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(4))] * 2
    if not (engine.is_first_stage() or engine.is_last_stage()):
        return None
    return iter(DataLoader(TensorDataset(*made), batch_size=3, shuffle=True))


def test_a_loader_that_only_ranks_with_data_make_is_said_where_layers_draw(world2, wave):
    options = replace(BASE, change="dropout", steps=2)
    theirs = world2.run(trained, options, listed, made_where_it_is_read)
    ours = world2.run(trained, replace(options, section=wave), listed, made_where_it_is_read)
    assert not same(ours[0], theirs[0]) and not ours[0]["error"]
    assert "rank 1 has no data, but reads them under 1F1B" in "\n".join(ours[0]["said"])
    said = world2.run(trained, replace(options, section=wave, change=""), listed, made_where_it_is_read)
    assert "has no data" not in "\n".join(said[0]["said"])


FEEDS = [(as_asked, 3), (everywhere, 3), (drawn_where_it_begins, 2), (where_it_is_read, 2)]


@pytest.mark.parametrize(("feed", "steps"), FEEDS)
@pytest.mark.parametrize("change", everyday(["", "dropout"], "dropout"))
def test_data_that_are_those_of_1f1b(world2, wave, feed, steps, change):
    options = replace(BASE, change=change, steps=steps)
    theirs = world2.run(trained, options, listed, feed)
    ours = world2.run(trained, replace(options, section=wave), listed, feed)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]
    assert "different seed" not in "\n".join(ours[0]["said"])


def test_a_loader_that_shuffles_draws_before_layers_set_the_generators(world2, wave):
    options = replace(BASE, change="dropout", steps=2, seed_layers=True)
    theirs = world2.run(trained, options, listed, drawn_where_it_begins)
    ours = world2.run(trained, replace(options, section=wave), listed, drawn_where_it_begins)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def drawn_in_each_batch(engine):
    return ((x + 0.01 * torch.randn_like(x), y) for x, y in engine.batches(7))


def test_a_loader_that_draws_between_layers_with_seeds_is_said(world2, wave):
    options = replace(BASE, section=wave, steps=2, seed_layers=True)
    said = [
        line for rank in world2.run(trained, options, listed, drawn_in_each_batch) for line in rank["said"]
    ]
    assert any("in step 1, a loader draws random numbers that differ from 1F1B's" in line for line in said)


# ---- backwards


def noisy(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient + 0.01 * torch.randn_like(gradient))
    return listed(model)


def test_backwards_that_draw_in_another_order_are_said(world2, tmp_path):
    """On DeepSpeed's own partition, where all forwards come first."""
    plan = make_plan(tmp_path, Layout("own", (4,), (0, 1)), LAYERS, MICRO_BATCHES, method="gpipe")
    options = replace(BASE, section={"plan": str(plan)}, steps=2)
    said = world2.run(trained, options, noisy)[0]["said"]
    assert any(
        "in step 1, backwards draw random numbers (torch) that differ from 1F1B's" in line for line in said
    )
    assert not any("seed_layers" in line for line in said)


def detached(model):
    """What this rank's layers return has no gradient, as behind a re-entrant checkpoint after frozen layers."""
    last = model.forward_funcs[-1]
    forward = last.forward
    if model.stage_id == 0:
        last.forward = lambda given: forward(given).detach()
    return listed(model)


def test_layers_that_would_learn_nothing_are_refused(world2, tmp_path):
    plan = make_plan(tmp_path, Layout("own", (4,), (0, 1)), LAYERS, MICRO_BATCHES)
    errors = [
        rank["error"]
        for rank in world2.run(trained, replace(BASE, section={"plan": str(plan), "timeout_s": 5}), detached)
    ]
    assert "have trainable parameters, but what layer 3 returns requires no gradient" in errors[0]


# ---- evaluations


def draws(engine):
    torch.rand(5)


def evaluates_nothing(engine):
    with suppress(StopIteration):
        engine.eval_batch(iter([]))
    draws(engine)


def test_an_evaluation_without_data_leaves_the_next_step_as_it_is(world2, wave):
    options = replace(BASE, change="dropout", steps=3)
    theirs = world2.run(trained, options, listed, data_of, draws)
    ours = world2.run(trained, replace(options, section=wave), listed, data_of, evaluates_nothing)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def test_digests_of_what_loaders_give():
    made = {
        "ids": torch.arange(6).reshape(2, 3),
        "rest": [torch.zeros(()), None, (torch.ones(2, dtype=torch.bool),)],
    }
    assert digest(made) == digest({**made, "ids": made["ids"].t().contiguous().t()})
    others = [
        {**made, "ids": made["ids"] + 1},
        {**made, "ids": made["ids"].reshape(3, 2)},
        {**made, "rest": made["rest"][:2]},
        made["ids"],
    ]
    assert len({digest(value) for value in (made, *others)}) == 5
