# SPDX-License-Identifier: Apache-2.0
"""What people's models have in them: equal bits, or a difference that was announced, or a refusal by name."""

import io
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
from ostinato.deepspeed.crossings import crossing
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.plans import Stage
from support.plans import Layout, make_plan
from support.strangers import LAYERS, Loud, Pair
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
        Layout("wave", (2, 4, 6), (0, 1, 1, 0)),
        Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True),
        Layout("uneven", (3,), (0, 1)),
    )
}
BASE = Options(model="strangers", optimizer="SGD", steps=3)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: str(make_plan(folder / name, layout, LAYERS, MICRO_BATCHES)) for name, layout in LAYOUTS.items()}


def trained(options: Options, names: list[str]) -> dict[str, dict]:
    """By name of a change: losses, weights, what this rank said, and the error that ended it."""
    return {name: _trained(replace(options, change=name)) for name in names}


def _trained(options: Options) -> dict:
    printed, losses, error = io.StringIO(), [], ""
    with redirect_stdout(printed):
        try:
            engine = make_engine(options)
            data = data_of(engine)
            losses = [engine.train_batch(data).item() for _ in range(options.steps)]
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return {"losses": losses, "weights": {} if error else weights(engine), "said": said, "error": error}


def same(ours: dict, theirs: dict) -> bool:
    return all(ours[key] == theirs[key] for key in ("losses", "weights", "error"))


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        ([torch.ones(2)], "a list"),
        ({"hidden": torch.ones(2)}, "a dict"),
        ((torch.ones(2), 3), "a tuple with a int in it"),
        ((torch.ones(2), (torch.ones(2),)), "a tuple with a tuple in it"),
        (Pair(torch.ones(2), torch.ones(2)), "a Pair"),
        (torch.ones(2).as_subclass(Loud), "tensors of class Loud"),
    ],
)
def test_what_cannot_cross_is_named(outputs, what):
    with pytest.raises(OstinatoError, match=f"layer 1 hands on {what}, and .* keep layers 1 and 2 in one stage"):
        crossing(stage(), outputs, [0, 4, 8])


def test_deepspeed_strips_tensors_at_its_own_borders_too():
    pair = Pair(torch.ones(2, requires_grad=True).as_subclass(Loud), None)
    sent = crossing(stage(), pair, [0, 2, 8])
    assert type(sent) is tuple and sent[0] is pair.hidden and sent[1] is None


def test_a_buffer_that_is_handed_on_may_be_written_to():
    mask, hidden = torch.zeros(3, 2).t(), torch.ones(2, requires_grad=True)
    sent = crossing(stage(), (hidden, mask), [0, 4, 8])
    mask.fill_(1)
    assert sent[0] is hidden and not sent[1].any() and sent[1].stride() == mask.stride()


def stage() -> Stage:
    return Stage(0, ranks=(0,), layers=(0, 1), outputs=(1,))


def test_what_a_border_takes_from_tensors(world2, stock, plans):
    """Lost at a border of the plan's own: refused in step 1. Lost at one of DeepSpeed's own: said."""
    lost, kept = "attribute", "attribute at DeepSpeed's border"
    theirs = stock(world2, BASE, trained, [kept])
    split = world2.run(trained, replace(BASE, section={"plan": plans["wave"], "timeout_s": 2}), [lost])[0][lost]
    assert split["error"].startswith('OstinatoError: layer 1 hands on tensors with the attribute "gate"')
    ours = world2.run(trained, replace(BASE, section={"plan": plans["wave"]}), [kept])[0][kept]
    assert same(ours, theirs[0][kept]) and ours["said"][-1].endswith("step 1 has shown: equal to 1F1B bit for bit")
    ours = world2.run(trained, replace(BASE, section={"plan": plans["uneven"]}), [kept])[0][kept]
    assert not same(ours, theirs[0][kept])
    assert 'step 1 has shown: layer 3 hands on tensors with the attribute "gate"' in ours["said"][-1]
