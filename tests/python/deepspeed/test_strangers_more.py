# SPDX-License-Identifier: Apache-2.0
"""What else people's repositories have: equal bits, or a difference that was announced, or a refusal by name."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from ostinato.deepspeed.crossings import crossing
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.items import Made, made_once
from ostinato.deepspeed.labels import WORDS, Labels
from ostinato.deepspeed.plans import Stage
from ostinato.deepspeed.reads import asks_for_rank, reads_gradients
from support.more_strangers import ByRank, More, ReadsGradients, Retaining, Writing
from support.plans import make_plan
from support.strangers import LAYERS, WIDTH, Plain
from support.training import MICRO_BATCHES, MODELS, data_of, train_with_costs
from test_strangers import BASE, LAYOUTS, same, write_profile_text
from test_strangers_training import listed, nothing, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

MODELS |= {"more": More(), "writing": Writing()}


def trains(*given) -> dict:
    """trained() on ranks that have imported this module."""
    return trained(*given)


MORE = replace(BASE, model="more", change="plain")


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: {"plan": str(make_plan(folder / name, LAYOUTS[name], LAYERS, MICRO_BATCHES)), "timeout_s": 20} for name in ("wave", "split")}


@pytest.mark.parametrize("plan", ["wave", "split"])
@pytest.mark.parametrize("change", ["conjugate", "negative"])
def test_a_conjugate_arrives_as_its_numbers(world2, sections, plan, change):
    options = replace(MORE, change=change)
    theirs, ours = world2.run(trains, options), world2.run(trains, replace(options, section=sections[plan]))
    assert ours[0]["losses"] == pytest.approx(theirs[0]["losses"], rel=1e-6) and not theirs[0]["error"]
    assert "that are not contiguous" in ours[0]["said"][-1]


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
    with pytest.raises(OstinatoError, match=f"hands on tensors that are {what}"):
        crossing(Stage(0, ranks=(0,), layers=(0, 1), outputs=(1,)), (torch.ones(2), tensor), [0, 4, 8])


SAID = {
    "gradients": "read .grad, which backwards add to",
    "retained": "read .grad, which backwards add to",
    "global by a backward": 'backwards change the global "NORMS", and forwards may read it',
    "by rank": "ask for the rank",
    "built by rank": 'its constructor makes its attribute "rank" otherwise on its new rank',
}


@pytest.mark.parametrize("change", SAID)
def test_what_has_other_numbers_elsewhere_is_said(world2, sections, change):
    options = replace(MORE, change=change)
    theirs, ours = world2.run(trains, options), world2.run(trains, replace(options, section=sections["wave"]))
    assert not same(ours[0], theirs[0]) and not ours[0]["error"]
    assert SAID[change] in ours[0]["said"][-1] and "bit for bit" not in ours[0]["said"][-1]


def logs_gradients(engine):
    """Of one parameter, for the script alone."""
    seen: list = []
    next(engine.module.parameters()).register_hook(lambda gradient: seen.append(float(gradient.sum())))


def test_what_only_hooks_on_backwards_use_is_not_said(world2, sections):
    theirs, ours = world2.run(trains, MORE, listed, data_of, logs_gradients), world2.run(trains, replace(MORE, section=sections["wave"]), listed, data_of, logs_gradients)
    assert same(ours[0], theirs[0]) and "equal to 1F1B bit for bit" in ours[0]["said"][-1] and len(ours[0]["said"]) == 2


def test_what_forwards_read_is_found_in_their_code():
    assert all(map(reads_gradients, (ReadsGradients(), Retaining(), lambda hidden: hidden.grad)))
    assert not any(map(reads_gradients, (Plain(), lambda hidden: torch.autograd.grad(hidden, hidden), nn.Linear(2, 2), torch.relu)))
    assert asks_for_rank(ByRank()) and not asks_for_rank(Plain()) and not asks_for_rank(lambda hidden: hidden) and not asks_for_rank(None)


@pytest.mark.parametrize("change", ["of its class", "compiled inside", "compiled method", "compiled in place", "over equal modules", "closed over in a stage"])
def test_layers_that_move_as_they_were_built(world2, sections, change):
    options = replace(MORE, change=change)
    theirs, ours = world2.run(trains, options), world2.run(trains, replace(options, section=sections["split"]))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"] and "bit for bit" in ours[0]["said"][-1]


BESIDE = {
    "over a module": r'layer 5 moves from rank 1 to rank 0, and tensors that it uses and that are no layer\'s \("hidden_linear" of over_a_module\(\)\)',
    "with a tensor": "layer 5 moves from rank 1 to rank 0, and tensors that it uses",
    "hidden": r'layer 3 moves from rank 0 to rank 1, .* \(the attribute "other" of a Referring\)',
    "closed over": r'layer 6 uses the weights of layer 4 without TiedLayerSpec \("used" of closes_over_weights\(\)\)',
    "referred to": r'layer 6 uses the weights of layer 4 without TiedLayerSpec \(the attribute "other" of a Referring\)',
}


@pytest.mark.parametrize("change", BESIDE)
def test_tensors_that_are_no_layers_are_the_same_or_refused(world2, sections, change):
    for rank in world2.run(refused, replace(MORE, change=change, section=sections["split"])):
        with pytest.raises(OstinatoError, match=BESIDE[change]):
            raise OstinatoError(rank)


def refused(options) -> str:
    return trained(options)["error"]


def kept(model, preserved=True):
    model.activation_checkpoint_interval = 1
    model.activation_checkpoint_func = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=preserved)
    return listed(model)


def anew(model):
    return kept(model, preserved=False)


@pytest.mark.parametrize(("give", "alike"), [(kept, True), (anew, False)])
def test_what_recomputation_draws_anew_is_said(world2, sections, give, alike):
    options = replace(MORE, change="dropout")
    theirs, ours = world2.run(trains, options, give), world2.run(trains, replace(options, section=sections["wave"]), give)
    said = ours[0]["said"][-1]
    assert same(ours[0], theirs[0]) is alike and not theirs[0]["error"]
    assert ("bit for bit" in said) is alike and ("backwards draw random numbers" in said) is not alike


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


@pytest.mark.parametrize("feed", [pops, counts, writes])
def test_a_batch_fn_is_called_once_an_item(world2, sections, feed):
    """Also where the first item runs twice, to learn what layers draw."""
    options = replace(MORE, change="dropout")
    theirs, ours = world2.run(trains, options, listed, feed), world2.run(trains, replace(options, section=sections["wave"]), listed, feed)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"] and "bit for bit" in ours[0]["said"][-1]


def trains_with(feed, options) -> dict:
    return trained(options, listed, feed)


def again(engine):
    return itertools.cycle(list(itertools.islice(engine.batches(7), 2 * MICRO_BATCHES)))


@pytest.mark.parametrize(("model", "feed"), [("more", pops), ("more", counts), ("writing", data_of)])
def test_what_auto_measures_with_is_not_used_up(world2, model, feed):
    options = replace(MORE, model=model)
    job = functools.partial(trains_with, feed)
    theirs, ours = world2.run(job, options), world2.run(train_with_costs, replace(options, section={"auto": True, "search": {"time_limit": 1}}), write_profile_text(), job)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def test_what_batch_fn_has_made():
    assert made_once(None)(3) == 3 and made_once(str)(3) == "3" and made_once(str)(Made(3)) == 3


def test_a_loss_that_writes_to_labels_that_come_again_is_said(world2, sections):
    options = replace(MORE, model="writing")
    for feed, alike in ((data_of, True), (again, False)):
        theirs, ours = world2.run(trains, options, listed, feed), world2.run(trains, replace(options, section=sections["wave"]), listed, feed)
        said = " ".join(ours[0]["said"])
        assert same(ours[0], theirs[0]) is alike and (WORDS in said) is not alike and ours[0]["losses"][:2] == theirs[0]["losses"][:2]


def test_labels_that_were_written_to():
    said: list[str] = []
    labels, given = Labels(said.append), {"ids": torch.zeros(2), "more": (torch.ones(2), None)}
    for batch in range(3):
        mine = labels.copy(batch, given)
        labels.ran(batch)
        assert mine["ids"] is not given["ids"] and not said
    labels.copy(3, given)["more"][0].add_(1)
    labels.ran(3)
    labels.copy(4, {"ids": torch.zeros(2)})
    assert not said and bool((given["more"][0] == 1).all())
    labels.copy(5, given["more"][0][:1])  # a view of it
    labels.copy(6, given)
    assert said == [WORDS]


# ---- scripts


def evaluates_to_the_end(engine):
    held_out, losses = itertools.islice(engine.batches(9), 2 * MICRO_BATCHES), []
    try:
        while True:
            losses.append(engine.eval_batch(held_out).item())
    except StopIteration:
        engine.seen = [*getattr(engine, "seen", []), *losses]
    assert len(losses) == 2


@pytest.mark.parametrize("change", ["plain", "dropout"])
def test_an_evaluation_that_finds_no_more_data_ends_on_all_ranks(world2, sections, change):
    options = replace(MORE, change=change)
    theirs, ours = (world2.run(trains, o, listed, data_of, evaluates_to_the_end) for o in (options, replace(options, section=sections["wave"])))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"] and not ours[1]["error"]


def without_gradients(engine):
    """A step that DeepSpeed refuses, before the first."""
    data = data_of(engine)
    with torch.no_grad(), pytest.raises(RuntimeError, match="requires gradients"):
        engine.train_batch(data)
    return data


def test_a_step_that_is_refused_reads_nothing(world2, sections):
    options = replace(MORE, change="dropout")
    theirs, ours = (world2.run(trains, o, listed, without_gradients) for o in (options, replace(options, section=sections["wave"])))
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def smaller(_module, _inputs, made):
    return made * 0.9 if torch.is_tensor(made) else None


def hooked_everywhere(options) -> dict:
    handle = nn.modules.module.register_module_forward_hook(smaller)
    try:
        return trained(options)
    finally:
        handle.remove()


def test_a_hook_on_all_modules_is_said(world2, sections):
    theirs, ours = world2.run(hooked_everywhere, MORE), world2.run(hooked_everywhere, replace(MORE, section=sections["wave"]))
    assert not same(ours[0], theirs[0]) and "smaller() (test_strangers_more.py:" in ours[0]["said"][-1] and "bit for bit" not in ours[0]["said"][-1]


def calls_the_model(engine):
    if engine.global_rank == 0:
        with pytest.raises(OstinatoError, match="this rank has layers 0, 1, 6, 7 under the plan"):
            engine.module(torch.ones(3, WIDTH))


def test_a_model_whose_layers_are_not_together_is_not_called(world2, sections):
    theirs, ours = world2.run(trains, MORE, listed, data_of, nothing), world2.run(trains, replace(MORE, section=sections["wave"]), listed, data_of, calls_the_model)
    assert same(ours[0], theirs[0]) and not ours[0]["error"]
