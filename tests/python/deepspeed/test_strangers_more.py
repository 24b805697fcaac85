# SPDX-License-Identifier: Apache-2.0
"""What else people's repositories have: equal bits, or a difference that was announced, or a refusal by name."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from ostinato.deepspeed.engine.crossings import crossing
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.data.items import Made, made_once
from ostinato.deepspeed.section.plans import Stage
from support.plans import make_plan
from support.strangers import LAYERS, WIDTH, Writing
from support.tiers import everyday
from support.training import MICRO_BATCHES, MODELS, data_of, train_with_costs
from test_strangers import BASE, LAYOUTS, same, write_profile_text
from test_strangers_training import listed, nothing, trained

MODELS["writing"] = Writing()


def trains(*given) -> dict:
    """trained() on ranks that have imported this module."""
    return trained(*given)


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        name: {"plan": str(make_plan(folder / name, LAYOUTS[name], LAYERS, MICRO_BATCHES)), "timeout_s": 20}
        for name in ("wave", "split")
    }


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.Tensor.to_sparse, "sparse_coo"),
        (lambda eye: eye.to("meta"), "on no device"),
        (lambda eye: torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8), "quantized"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # quantized tensors are to go
def test_tensors_whose_bytes_are_not_their_numbers_are_named(tensor, what):
    tensor = tensor(torch.eye(2))
    with pytest.raises(OstinatoError, match=f"returns tensors that are {what}"):
        crossing(Stage(0, ranks=(0,), layers=(0, 1), outputs=(1,)), (torch.ones(2), tensor), [0, 4, 8])


@pytest.mark.parametrize(
    ("change", "partition"),
    [
        ("of its class", "uniform"),
        ("shuffled", "uniform"),
        ("shuffled", "parameters"),  # DeepSpeed builds each layer once before, to count them
        ("shuffled by its spec", "uniform"),
        ("compiled inside", "uniform"),
        ("compiled method", "uniform"),
        ("compiled in place", "uniform"),
        ("over equal modules", "uniform"),
        ("closed over in a stage", "uniform"),
    ],
)
def test_layers_that_move_as_they_were_built(world2, sections, change, partition):
    options = replace(BASE, change=change, partition=partition)
    theirs = world2.run(trains, options)
    ours = world2.run(trains, replace(options, section=sections["split"]))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


# ---- data


def pops(engine):
    engine.set_batch_fn(lambda item: (item.pop("x"), item.pop("y")))
    return ({"x": x, "y": y} for x, y in engine.batches(7))


def counts(engine):
    calls = itertools.count(1)
    engine.set_batch_fn(lambda item: tuple(part * (1 + 0.01 * next(calls)) for part in item))
    return engine.batches(7)


def writes(engine):
    engine.set_batch_fn(lambda item: (item[0].mul_(1.5), item[1].add_(0.5)))
    return itertools.cycle(list(itertools.islice(engine.batches(7), MICRO_BATCHES)))


@pytest.mark.parametrize("feed", everyday([pops, counts, writes], pops, writes))
def test_a_batch_fn_is_called_once_an_item(world2, sections, feed):
    """Also where the first item runs twice, to learn what layers draw."""
    options = replace(BASE, change="dropout")
    theirs = world2.run(trains, options, listed, feed)
    ours = world2.run(trains, replace(options, section=sections["wave"]), listed, feed)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def trains_with(feed, options) -> dict:
    return trained(options, listed, feed)


@pytest.mark.parametrize(
    ("model", "feed"),
    everyday([("strangers", pops), ("strangers", counts), ("writing", data_of)], ("strangers", pops)),
)
def test_what_auto_measures_with_is_not_used_up(world2, model, feed):
    options = replace(BASE, model=model)
    job = functools.partial(trains_with, feed)
    theirs = world2.run(job, options)
    ours = world2.run(
        train_with_costs,
        replace(options, section={"auto": True, "search": {"time_limit": 1}}),
        write_profile_text(),
        job,
    )
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def test_what_batch_fn_has_made():
    assert made_once(None)(3) == 3 and made_once(str)(3) == "3" and made_once(str)(Made(3)) == 3


# ---- scripts


def evaluates_to_the_end(engine):
    held_out, losses = itertools.islice(engine.batches(9), 2 * MICRO_BATCHES), []
    try:
        while True:
            losses.append(engine.eval_batch(held_out).item())
    except StopIteration:
        engine.seen = [*getattr(engine, "seen", []), *losses]
    assert len(losses) == 2


@pytest.mark.parametrize("change", everyday(["", "dropout"], "dropout"))
def test_an_evaluation_that_finds_no_more_data_ends_on_all_ranks(world2, sections, change):
    options = replace(BASE, change=change)
    theirs, ours = (
        world2.run(trains, o, listed, data_of, evaluates_to_the_end)
        for o in (options, replace(options, section=sections["wave"]))
    )
    assert same(ours[0], theirs[0]) and not theirs[0]["error"] and not ours[1]["error"]


def without_gradients(engine):
    """A step that DeepSpeed refuses, before the first."""
    data = data_of(engine)
    with torch.no_grad(), pytest.raises(RuntimeError, match="requires gradients"):
        engine.train_batch(data)
    return data


def test_a_step_that_is_refused_reads_nothing(world2, sections):
    options = replace(BASE, change="dropout")
    theirs, ours = (
        world2.run(trains, o, listed, without_gradients)
        for o in (options, replace(options, section=sections["wave"]))
    )
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def calls_the_model(engine):
    if engine.global_rank == 0:
        with pytest.raises(OstinatoError, match="under the plan this rank has layers 0, 1, 6, 7"):
            engine.module(torch.ones(3, WIDTH))


def test_a_model_whose_layers_are_not_together_is_not_called(world2, sections):
    theirs = world2.run(trains, BASE, listed, data_of, nothing)
    ours = world2.run(trains, replace(BASE, section=sections["wave"]), listed, data_of, calls_the_model)
    assert same(ours[0], theirs[0]) and not ours[0]["error"]
