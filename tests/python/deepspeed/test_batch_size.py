# SPDX-License-Identifier: Apache-2.0
"""set_train_batch_size(): a plan for each number of micro-batches, and the losses of DeepSpeed's own 1F1B."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from support.profiles import write_profile
from support.models import BATCH, LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, in_both_starts, make_engine, weights

RAMP = (2, 2, 4, 8, 8, 2)  # micro-batches of each step; 4 are configured
BASE = Options(stages=2, steps=len(RAMP))


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """The second half is three times the first, so that layers move."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    return write_profile(path, [100] * 4 + [300] * (LAYERS - 4))


def ramp(options: Options, sizes=RAMP) -> dict:
    return in_both_starts(_ramp, options, sizes)


def _ramp(options: Options, sizes) -> dict:
    """Sets the size before every step, as gpt-neox and Megatron-DeepSpeed do."""
    said, losses, held_out = io.StringIO(), [], []
    with redirect_stdout(said):
        engine = make_engine(options)
        data = data_of(engine)
        for size in sizes:
            engine.set_train_batch_size(size * BATCH)
            losses.append(engine.train_batch(data).item())
            held_out.append(engine.eval_batch(data_of(engine, seed=99)).item())
    run = getattr(engine, "_ostinato", None)
    made = {"losses": losses, "held out": held_out, "last": weights(engine), "said": said.getvalue()}
    if run is not None:
        made["plans"] = {count: program.plan_sha256[:12] for count, program in run.programs.items()}
        if run.trace is not None:
            run.trace.write()
    return made


def numbers_of(made: list[dict]) -> list:
    return [(one["losses"], one["held out"], one["last"]) for one in made]


@pytest.mark.parametrize("model", ["mixed", "random"])
def test_losses_are_those_of_1f1b_with_the_same_sizes(world2, costs, tmp_path, model):
    base = replace(BASE, model=model)
    section = {
        "profile": str(costs),
        "search": {"time_limit": 1, "max_chunks": 1},
        "trace": str(tmp_path / "trace"),
    }
    ours = world2.run(ramp, replace(base, section=section))
    assert numbers_of(ours) == numbers_of(world2.run(ramp, base))
    plans = ours[0]["plans"]
    assert set(plans) == set(RAMP) and len(set(plans.values())) == 3
    changes = [line for line in ours[0]["said"].splitlines() if "from step" in line]
    assert [f"plan {plans[count]}" in line for count, line in zip((2, 4, 8, 2), changes, strict=True)] == [
        True
    ] * 4
    assert changes[1].startswith("ostinato: from step 3 on: ") and "4 micro-batches: predicted " in changes[1]
    assert "times as fast" not in changes[1]
    trace = json.loads((tmp_path / "trace" / "rank-0.json").read_text())
    assert trace["plan_sha256"].startswith(plans[2]) and len(trace["step_seconds"]) == 1


def test_the_first_start_measures_whatever_size_it_is_given(world2, tmp_path):
    """ "auto" plans for the configured number, and then for that which the script sets before step 1."""
    section = {
        "auto": True,
        "check": 1,
        "output": str(tmp_path),
        "search": {"time_limit": 1, "max_chunks": 1},
    }
    ours = world2.run(ramp, replace(BASE, section=section), (2, 2, 4))
    assert numbers_of(ours) == numbers_of(world2.run(ramp, BASE, (2, 2, 4)))
    assert json.loads((tmp_path / "plan.json").read_text())["micro_batches"] == MICRO_BATCHES
    assert set(ours[0]["plans"]) == {2, 4} and "equal DeepSpeed's 1F1B bit for bit" in ours[0]["said"]


def refused(options: Options, samples: int) -> str:
    return in_both_starts(_refused, options, samples)


def _refused(options: Options, samples: int) -> str:
    engine = make_engine(options)
    before = engine.train_batch_size()
    try:
        engine.set_train_batch_size(samples)
    except Exception as error:
        assert (engine.train_batch_size(), engine.micro_batches) == (before, MICRO_BATCHES)
        engine.train_batch(data_of(engine))  # goes on with what it has
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_size_that_does_not_divide_is_deepspeeds_error(world2, costs):
    section = {"profile": str(costs), "search": {"time_limit": 1}}
    for message in world2.run(refused, replace(BASE, section=section), 2 * BATCH + 1):
        assert message.startswith("ValueError: Train batch size must be divisible")


def test_a_plan_that_is_named_is_for_one_number(world2, tmp_path):
    plan = make_plan(tmp_path, Layout("halves", (4,), (0, 1)), LAYERS, MICRO_BATCHES)
    for message in world2.run(refused, replace(BASE, section={"plan": str(plan)}), 2 * BATCH):
        assert (
            message.startswith(f"OstinatoError: set_train_batch_size({2 * BATCH}): ")
            and "each number gets its own plan" in message
        )
