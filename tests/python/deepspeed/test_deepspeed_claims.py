# SPDX-License-Identifier: Apache-2.0
"""What rank 0 says of a run beside 1F1B is true: before step 1, after it, and later; random numbers are those
of 1F1B, or it is said."""

import io
import json
import random
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.section import verdict
from support import random_model as models
from support.plans import Layout, make_plan, placement_text
from support.tiers import everyday
from support.training import (
    MICRO_BATCHES,
    Options,
    data_of,
    first_step_refused,
    in_both_starts,
    make_engine,
    weights,
)
from test_deepspeed_copies import X_2, plan_of

ACTIVATION = 4 * models.WIDTH * models.BATCH  # bytes
STOCK = Layout("stock", (4,), (0, 1))
UNEVEN = Layout("uneven", (3,), (0, 1))
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
HALVES = Layout("halves", (2, 4, 6), (0, 0, 1, 1))
SPLIT = Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True)
BASE = Options(model="random", optimizer="SGD", steps=3)
PLACEMENTS = {layout.name: layout for layout in (STOCK, UNEVEN, WAVE, HALVES, SPLIT)}


def heard(options: Options) -> dict:
    """Losses and weights, and what the rank said: at the start, in step 1, and later."""
    said, losses = [], []
    random.seed(dist.get_rank())  # else forked ranks draw alike
    numpy.random.seed(dist.get_rank())

    def listen(function):
        printed = io.StringIO()
        with redirect_stdout(printed):
            made = function()
        said.append([line for line in printed.getvalue().splitlines() if line.startswith("ostinato")])
        return made

    engine = listen(lambda: make_engine(options))
    data = drawing(data_of(engine), options.draws_every)
    for _ in range(options.steps):
        if options.draws_every:
            torch.rand(5)  # a script's own, between steps
        losses.append(listen(lambda: engine.train_batch(data).item()))
    return {
        "losses": losses,
        "weights": weights(engine),
        "start": said[0],
        "first": said[1],
        "later": sum(said[2:], []),
    }


def drawing(batches, every: int):
    """The same batches; each `every` of them a number is drawn first, as by a loader that begins anew."""
    for number, batch in enumerate(batches or ()):
        if every and number % every == 0:
            torch.rand(1)
        yield batch


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        name: str(make_plan(folder / name, x, models.LAYERS, MICRO_BATCHES)) for name, x in PLACEMENTS.items()
    }


def both(world, stock, options: Options, plan: str):
    """Of DeepSpeed alone and of the plan; a rank that is not the first says nothing."""
    theirs, ours = stock(world, options, heard), world.run(heard, replace(options, section={"plan": plan}))
    assert ours[1]["start"] == ours[1]["first"] == []
    return theirs[0], ours[0]


def equal(a: dict, b: dict) -> bool:
    return a["losses"] == b["losses"] and a["weights"] == b["weights"]


@pytest.mark.parametrize("placement", everyday(["stock", "uneven", "wave", "halves"], "halves"))
def test_nothing_drawn(world2, stock, plans, placement):
    theirs, ours = both(world2, stock, BASE, plans[placement])
    assert "ostinato: expected: the same losses as 1F1B, bit for bit" in ours["start"] and not ours["first"]
    assert equal(theirs, ours) and not ours["later"]


def test_dropout_where_deepspeed_has_it(world2, stock, plans):
    theirs, ours = both(
        world2, stock, replace(BASE, changed=((1, models.Module), (5, models.Dropping))), plans["stock"]
    )
    assert equal(theirs, ours) and not ours["first"]


DROPPING = ((1, models.Module), (2, models.Dropping), (5, models.Dropping), (6, models.Module))


@pytest.mark.parametrize("placement", everyday(["uneven", "wave", "split"], "split"))
def test_dropout_is_that_of_1f1b(world2, stock, plans, placement):
    theirs, ours = both(world2, stock, replace(BASE, changed=DROPPING), plans[placement])
    assert equal(theirs, ours) and not ours["first"] and not ours["later"]


@pytest.mark.parametrize("way", ["stage", "reentrant", "own"])
def test_dropout_that_is_recomputed(world2, stock, tmp_path, way):
    """By a plan whose stages recompute, by DeepSpeed's checkpointing, and by a layer's own."""
    options, text = replace(BASE, changed=DROPPING), placement_text(WAVE, models.LAYERS)
    if way == "stage":
        text = text.replace("layers = [", "recompute = true\nlayers = [")
    elif way == "reentrant":
        options = replace(options, checkpoint_interval=1)
    else:
        options = replace(options, changed=((0, models.Checkpointed), *DROPPING[1:]))
    plan = make_plan(tmp_path, WAVE, models.LAYERS, MICRO_BATCHES, text=text)
    theirs, ours = both(world2, stock, options, str(plan))
    assert equal(theirs, ours) and not ours["first"]


def test_a_recomputed_stage_that_changes_its_inputs_in_place(world2, stock, tmp_path):
    text = placement_text(WAVE, models.LAYERS).replace("layers = [", "recompute = true\nlayers = [")
    plan = make_plan(tmp_path, WAVE, models.LAYERS, MICRO_BATCHES, text=text)
    theirs, ours = both(
        world2, stock, replace(BASE, changed=((4, models.InPlace), (6, models.InPlace))), str(plan)
    )
    assert equal(theirs, ours) and not ours["first"]


def test_a_recomputed_layer_that_computes_gradients_is_refused(world2, tmp_path):
    text = placement_text(UNEVEN, models.LAYERS).replace("layers = [", "recompute = true\nlayers = [")
    plan = make_plan(tmp_path, UNEVEN, models.LAYERS, MICRO_BATCHES, text=text)
    options = replace(BASE, changed=((1, models.OwnGradient),), section={"plan": str(plan), "timeout_s": 3.0})
    message = world2.run(first_step_refused, options)[0]
    assert (
        message.startswith("OstinatoError: layer 1 computes gradients in its forward")
        and "search again" in message
    )


def test_dropout_in_two_directions(world2, stock, tmp_path):
    options = replace(BASE, changed=DROPPING)
    theirs, ours = both(world2, stock, options, plan_of(tmp_path, X_2))
    assert (
        "up to rounding, because the gradients of the 2 directions" in " ".join(ours["start"])
        and not ours["first"]
    )
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)


def counted(options: Options, noise: float) -> dict:
    """Losses of steps and evaluations, where the loss counts its calls for the script, and may draw."""
    engine, calls, losses = make_engine(options), [], []

    def loss(outputs, targets):
        calls.append(outputs)
        return models.loss(outputs + noise * torch.rand_like(outputs) if noise else outputs, targets)

    engine.module.loss_fn = loss
    data, printed = data_of(engine), io.StringIO()
    with redirect_stdout(printed):
        for _ in range(2):
            losses += [engine.train_batch(data).item(), engine.eval_batch(data).item()]
    said = [line for line in printed.getvalue().splitlines() if "random numbers" in line]
    return {"losses": losses, "weights": weights(engine), "calls": len(calls), "said": said}


@pytest.mark.parametrize(
    ("placement", "changed", "noise", "more"),
    everyday(
        [
            ("split", (), 0.0, 0),
            ("split", (), 0.1, 1),
            ("split", DROPPING, 0.0, 1),
            ("split", DROPPING, 0.1, 2),
            ("wave", (), 0.1, 2),
        ],
        ("split", (), 0.0, 0),
        ("split", (), 0.1, 1),
        ("split", DROPPING, 0.1, 2),
    ),
)
def test_how_often_the_loss_is_called(world2, plans, placement, changed, noise, more):
    """As often as under 1F1B, unless what it draws must be known: then once more in steps, and in evaluations."""
    options, job = replace(BASE, changed=changed), partial(counted, noise=noise)
    theirs, ours = (
        world2.run(job, options),
        world2.run(job, replace(options, section={"plan": plans[placement]})),
    )
    assert equal(theirs[0], ours[0]) and not any(rank["said"] for rank in ours)
    assert sum(rank["calls"] for rank in ours) == sum(rank["calls"] for rank in theirs) + more


@pytest.mark.parametrize(
    ("every", "is_equal"), [(MICRO_BATCHES, True), (3, False)], ids=["between-steps", "within"]
)
def test_a_loader_that_draws(world2, stock, plans, every, is_equal):
    """As an epoch that begins: where it does so within a step, that is said."""
    options = replace(BASE, changed=DROPPING, draws_every=every)
    theirs, ours = both(world2, stock, options, plans["wave"])
    assert equal(theirs, ours) == is_equal
    said = " ".join(ours["first"] + ours["later"])
    assert ("the batch drew more or fewer random numbers" in said) != is_equal


def heard_evaluating(options: Options) -> dict:
    """heard() with evaluations before, between and after the steps: their losses, and all that the rank said
    in them."""
    random.seed(dist.get_rank())
    engine = make_engine(options)
    data, printed = data_of(engine), io.StringIO()
    held_out = drawing(data_of(engine, seed=99), options.draws_every)
    with redirect_stdout(printed):
        losses = [engine.eval_batch(held_out).item()]
        for micro_batches in (MICRO_BATCHES, 3, 6):
            losses.append(engine.train_batch(data).item())
            losses.append(engine.eval_batch(held_out, num_micro_batches=micro_batches).item())
    said = [line for line in printed.getvalue().splitlines() if "in an evaluation, " in line]
    return {"losses": [*losses, torch.rand(()).item()], "weights": weights(engine), "said": said}


@pytest.mark.parametrize("placement", everyday(["uneven", "wave"], "wave"))
def test_evaluation_draws_what_it_draws_in_1f1b(world2, stock, plans, placement):
    options = replace(BASE, changed=((1, models.Noisy), (4, models.Dropping), (6, models.Noisy)))
    theirs = stock(world2, options, heard_evaluating)[0]
    ours, other = world2.run(heard_evaluating, replace(options, section={"plan": plans[placement]}))
    assert equal(theirs, ours) and not ours["said"] and not other["said"]


@pytest.mark.parametrize(("placement", "is_equal"), [("uneven", True), ("wave", False)])
def test_a_loader_that_draws_within_an_evaluation(world2, stock, plans, placement, is_equal):
    """Where nothing else draws it draws what it draws in 1F1B, on ranks that read in both."""
    options = replace(BASE, draws_every=3)
    theirs, their_other = stock(world2, options, heard_evaluating)
    ours, other = world2.run(heard_evaluating, replace(options, section={"plan": plans[placement]}))
    said = " ".join(ours["said"] + other["said"])
    assert ("the batch drew more or fewer random numbers" in said) != is_equal
    assert (equal(theirs, ours) and equal(their_other, other)) or not is_equal


def test_evaluation_that_cannot_be_followed_is_said(world2, stock, plans):
    options = replace(BASE, changed=((1, models.OfPythonEverywhere), (6, models.OfPythonEverywhere)))
    theirs = stock(world2, options, heard_evaluating)[0]
    ours, other = world2.run(heard_evaluating, replace(options, section={"plan": plans["wave"]}))
    (said,) = ours["said"]
    assert "layers 1, 6 draw random numbers (Python's random)" in said and not other["said"]
    assert not equal(theirs, ours)


def heard_growing(options: Options) -> dict:
    """As under curriculum learning, the script says when samples grow, and dropout then draws more for each."""
    printed, losses = io.StringIO(), []
    with redirect_stdout(printed):
        engine = make_engine(options)
        data, held_out = data_of(engine), data_of(engine, seed=5)
        for times in (1, 1, 2, 3, 3):
            engine.reset_activation_shape()
            longer = data and ((x.repeat(times, 1), y.repeat(times, 1)) for x, y in data)
            losses.append(engine.train_batch(longer).item())
            engine.reset_activation_shape()
            losses.append(engine.eval_batch(held_out).item())
    said = [line for line in printed.getvalue().splitlines() if "random numbers" in line]
    return {"losses": [*losses, torch.rand(()).item()], "weights": weights(engine), "said": said}


@pytest.mark.parametrize("placement", everyday(["uneven", "wave"], "wave"))
def test_samples_that_grow_draw_what_they_draw_in_1f1b(world2, stock, plans, placement):
    options = replace(BASE, changed=((1, models.Dropping), (4, models.Module), (6, models.Dropping)))
    theirs = stock(world2, options, heard_growing)[0]
    ours, other = world2.run(heard_growing, replace(options, section={"plan": plans[placement]}))
    assert equal(theirs, ours) and not ours["said"] and not other["said"]


DRAWS = {
    "python": (models.OfPython, "Python's random"),
    "numpy": (models.OfNumpy, "NumPy"),
    "half-pairs": (models.Normal, "torch"),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_what_draws_is_said(world2, stock, plans, kind):
    layer, generator = DRAWS[kind]
    theirs, ours = both(world2, stock, replace(BASE, changed=((1, layer), (6, layer))), plans["wave"])
    (shown,) = ours["first"]
    assert (
        "in step 1, layers 1, 6 draw random numbers" in shown
        and f"({generator})" in shown
        and "seed_layers" in shown
    )
    assert not equal(theirs, ours) and not ours["later"]


def test_layers_that_are_skipped_by_chance(world2, stock, plans):
    """What they draw says whether they draw more."""
    theirs, ours = both(
        world2, stock, replace(BASE, changed=((1, models.Skipping), (5, models.Skipping))), plans["wave"]
    )
    (shown,) = ours["first"]
    assert "drew more or fewer random numbers than in the first micro-batch" in shown
    assert not equal(theirs, ours)


@pytest.mark.parametrize("interval", everyday([0, 1, 3], 3))
def test_seeded_layers_are_equal_everywhere(world2, stock, plans, interval):
    changed = tuple(
        enumerate([models.Module, models.OfPython, models.OfNumpy, models.Normal, models.Dropping])
    )
    options = replace(BASE, changed=changed, seed_layers=True, checkpoint_interval=interval)
    theirs, ours = both(world2, stock, options, plans["wave"])
    assert "draws" not in " ".join(ours["start"]) and equal(theirs, ours)


def test_seeded_layers_in_two_directions(world2, stock, tmp_path):
    options = replace(BASE, changed=((1, models.Module), (6, models.Dropping)), seed_layers=True)
    theirs = stock(world2, options, heard)[0]
    ours = world2.run(heard, replace(options, section={"plan": plan_of(tmp_path, X_2)}))[0]
    assert "of the 2 directions" in " ".join(ours["start"])
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)


def test_draws_of_a_later_step_are_said_by_the_rank(world2, plans):
    options = replace(BASE, changed=((2, models.Late),), section={"plan": plans["wave"]})
    first, second = world2.run(heard, options)
    (later,) = second["later"]  # which runs layer 2
    assert "rank 1: in step 2, layer" in later and "draw random numbers (torch)" in later
    assert not first["first"] and not first["later"]


def test_several_tensors_at_a_border(world2, stock, plans):
    """Layers 3 to 4 of the wave's stage; DeepSpeed's border is behind layer 3."""
    options = replace(BASE, changed=((5, models.Pair), (6, models.Sum)))
    theirs, ours = both(world2, stock, options, plans["wave"])
    (shown,) = ours["first"]
    assert "several tensors with gradients pass from layer 5" in shown and "up to rounding" in shown
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)


def test_several_tensors_behind_a_border_of_1f1b_alone(world2, stock, plans):
    options = replace(BASE, changed=((3, models.Pair), (4, models.Sum)))
    theirs, ours = both(world2, stock, options, plans["uneven"])
    (shown,) = ours["first"]
    assert (
        "bit for bit" in " ".join(ours["start"])
        and "several tensors with gradients pass from layer 3" in shown
    )
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)


@pytest.mark.parametrize(("placement", "other"), [("wave", True), ("stock", False)])
def test_layers_under_torch_jit_script(world2, stock, plans, placement, other):
    options = replace(BASE, changed=tuple((layer, models.Scripted) for layer in (1, 2, 5, 6)))
    theirs, ours = both(world2, stock, options, plans[placement])
    assert [
        "because parts of layers 1, 2, 5 and 6 are under torch.jit.script" in line for line in ours["first"]
    ] == [True] * other
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)


def test_what_a_start_has_measured_is_said_by_the_starts_that_follow(world2, plans, tmp_path):
    """Several tensors pass a border of 1F1B alone; in place of what is expected, and of what step 1 shows where bits were
    equal."""
    out = shutil.copytree(Path(plans["uneven"]).parent, tmp_path / "out")
    options = replace(BASE, changed=((3, models.Pair), (4, models.Sum)))
    before = "ostinato: expected: the same losses as 1F1B, bit for bit"
    first = world2.run(
        in_both_starts, heard, replace(options, section={"auto": True, "check": 1, "output": str(out)})
    )[0]
    assert not (out / "profile.json").exists()  # "check" compares the plan that is there
    (measured,) = [line for line in first["first"] if "measured: " in line]
    assert before in first["start"]

    def next_start(**changed) -> tuple[list[str], list[str]]:
        left = json.loads((out / verdict.CHECK).read_text()) | changed
        (out / verdict.CHECK).write_text(json.dumps(left))
        said = world2.run(heard, replace(options, section={"auto": True, "output": str(out)}))[0]
        return said["start"], said["first"]

    then = measured.replace("measured: ", "measured when the plan was found, ")
    start, step_1 = next_start(equal=True)
    assert then in start and before not in start and not step_1
    start, step_1 = next_start(equal=False)
    assert (
        then in start and "several tensors with gradients pass from layer 3 to the next, where" in step_1[0]
    )
    start, step_1 = next_start(under={"partition": [0, 3, 8]})
    assert then not in start and before in start and "several tensors" in step_1[0]


@pytest.mark.parametrize("planned", [ACTIVATION, 1000])
def test_activations_of_another_size_than_planned_are_told(world2, tmp_path, planned):
    text = placement_text(UNEVEN, models.LAYERS)
    text = text.replace('after = ["s0.F"]\n', f'after = [{{ block = "s0.F", bytes = {planned} }}]\n')
    text += "\n[model]\nmicro_batch_size = 2\n"
    plan = make_plan(tmp_path, UNEVEN, models.LAYERS, MICRO_BATCHES, text=text)
    told = [
        line
        for line in world2.run(heard, replace(BASE, section={"plan": str(plan)}))[0]["first"]
        if "outputs" in line
    ]
    if planned == ACTIVATION:
        assert not told
    else:
        assert told[0].startswith(
            f"ostinato: layer 2 outputs {ACTIVATION} B a micro-batch, and the plan was made for 1000 B: "
        )
