# SPDX-License-Identifier: Apache-2.0
"""A plan's first steps are compared with DeepSpeed's own of the first start."""

import pytest
from ostinato.deepspeed.tell import speedup
from ostinato.deepspeed.tell.speedup import Expected, GivenUp, Speedup

HALF = Expected(0.5)
BEFORE = [1.00, 1.01, 1.02, 1.03, 1.04]


@pytest.fixture
def said(monkeypatch):
    """What rank 0 of two says; the other one takes as long, and a little less in every step."""
    lines: list[str] = []
    monkeypatch.setattr(speedup, "say", lines.append)
    monkeypatch.setattr(speedup, "everyones", lambda mine: [mine, [one - 0.001 for one in mine]])
    return lines


def run(
    seconds: list[float], before=BEFORE, warm_up=2, fall_back=None, stays="", expected=HALF, follows=""
) -> list[str]:
    """Why it was to fall back, if it was."""
    asked: list[str] = []
    one = Speedup(
        before,
        expected,
        warm_up,
        (lambda why, seconds: asked.append(why) or fall_back) if fall_back is not None else None,
        lambda why: follows,
    )
    if stays:
        one.stay(stays)
    for time in seconds:
        one.step(time)
    return asked


def test_faster(said):
    assert run([9.0, 9.0] + [0.5] * 20, fall_back="x") == []
    assert said == [
        "this plan is 2.04 times as fast as your run before: 1020.0 -> 500.0 ms a step (quartiles 1010.0 to 1030.0, 5 steps; now quartiles "
        "500.0 to 500.0, 20 steps)"
    ]


def test_long_steps_are_compared_sooner(said):
    run([9.0, 9.0] + [5.0] * 5, before=[20.0] * 2)
    assert (
        len(said) == 1
        and "4.00 times as fast" in said[0]
        and "now quartiles 5000.0 to 5000.0, 5 steps" in said[0]
    )


@pytest.mark.parametrize("seconds", [[0.5] * 19, [1.02] * 19])
def test_nothing_is_said_before(said, seconds):
    assert run([9.0, 9.0, *seconds], fall_back="x") == [] and said == []


def test_a_gain_that_is_less_than_expected_says_so(said):
    run([9.0, 9.0] + [0.7] * 20)
    assert "1.46 times as fast" in said[0] and said[0].endswith("; a step was expected to take 500.0 ms")


def test_within_the_noise_the_plan_stays(said):
    assert run([9.0, 9.0] + [1.03] * 20, fall_back="x") == []
    assert len(said) == 1
    assert "0.99 times as fast as your run before, which is within the noise of these steps: " in said[0]


def test_slower_falls_back_at_the_first_look(said):
    asked = run([9.0, 9.0] + [1.1] * 5, fall_back="mpi4py has initialised MPI")
    assert len(asked) == 1 and asked[0].startswith(
        "this plan is slower than your run before: 1020.0 -> 1100.0 ms a step (quartiles"
    )
    assert said == [
        f"{asked[0]}; turn it off or profile again (the plan stays, because mpi4py has initialised MPI)"
    ]


def test_slower_stays_where_nothing_falls_back(said):
    assert (
        run([9.0, 9.0] + [1.1] * 20) == []
        and said[0].endswith("turn it off or profile again")
        and len(said) == 1
    )


def test_slower_stays_after_a_checkpoint(said):
    assert run([9.0, 9.0] + [1.1] * 20, fall_back="x", stays="a checkpoint was saved") == []
    assert said[0].endswith("(the plan stays, because a checkpoint was saved)")


def test_with_what_an_earlier_run_measured(said):
    """A single figure, perhaps of another day: all steps count, and first whether the machine is the same."""
    run([9.0, 9.0] + [1.1] * 5, before=[1.0])
    assert said == []
    run([9.0, 9.0] + [1.1] * 20, before=[1.0])
    assert "2.20 times as long as the plan expects" in said[0] and "is not as it was" in said[0]
    said.clear()
    run([9.0, 9.0] + [1.1] * 20, before=[1.0], expected=Expected(1.0))
    assert "slower than your run when the plan was found: 1000.0 -> 1100.0 ms a step (now" in said[0]


def test_a_slower_plan_that_stays_says_what_the_next_start_does(said):
    run(
        [9.0, 9.0] + [1.1] * 20, before=[1.0], expected=Expected(1.0), follows="the next start measures again"
    )
    assert said[0].endswith(", unless the machine is busier now; the next start measures again")


@pytest.mark.parametrize(
    ("takes", "noticed"), [(0.5, ""), (0.59, ""), (0.61, "1.22 times as long"), (0.3, "0.60 times as long")]
)
def test_a_plan_that_was_found_on_a_busier_or_idler_machine(said, takes, noticed):
    run([9.0, 9.0] + [takes] * 20, before=[1.0])
    assert said[0].endswith("measure again to know what the plan gains") == bool(noticed)
    assert said[0].startswith(
        f"a step takes {noticed} as the plan expects: expected 500.0 ms -> " if noticed else "steps take "
    )


def test_beside_what_an_earlier_run_measured_no_gain_is_told(said):
    """The ratio would be one of two days: in one, the machine was busy."""
    run([9.0, 9.0] + [0.5] * 20, before=[1.0])
    run([9.0, 9.0] + [0.41] * 20, before=[1.0])
    run([9.0, 9.0] + [0.61] * 20, before=[1.0], expected=Expected(0.510))
    earlier = "; your run took 1000.0 ms when the plan was found, which was not measured again"
    assert said == [
        f"steps take 500.0 ms (quartiles 500.0 to 500.0, 20 steps){earlier}",
        f"steps take 410.0 ms (quartiles 410.0 to 410.0, 20 steps){earlier}",
        f"steps take 610.0 ms (quartiles 610.0 to 610.0, 20 steps){earlier}",
    ]


@pytest.mark.parametrize("how", ["", " without the optimizer"])
def test_without_anything_before_the_plan_is_compared_with_what_it_expects(said, how):
    run([9.0, 9.0] + [0.55] * 25, before=[], expected=Expected(0.5, how))
    assert said == [
        f"a step takes 1.10 times as long as the plan expects: expected 500.0 ms{how} -> measured 550.0 ms a step (quartiles 550.0 to 550.0, 20 "
        "steps)"
    ]


@pytest.mark.parametrize(("takes", "known"), [(0.5, True), (0.42, True), (0.4, False)])
def test_steps_that_are_shorter_than_any_plan_explains_say_nothing_of_the_gain(said, takes, known):
    assert run([9.0, 9.0] + [takes] * 20, fall_back="x") == []
    assert said[0].startswith(
        "this plan is " if known else "what this plan gains is not known: 1020.0 -> 400.0 ms"
    )
    assert said[0].endswith("expected to be 2.04 times as fast; the machine was busier before") != known


@pytest.mark.parametrize(("takes", "told"), [(1.2, True), (1.03, False), (0.9, False)])
def test_a_plan_that_was_given_up_on_a_busy_machine_is_not_given_up_for_good(said, takes, told):
    """Its quartiles end at 1.03."""
    alone = GivenUp(BEFORE, 2, lambda: "the next start runs it")
    for time in [9.0, 9.0] + [takes] * 25:
        alone.step(time)
    assert (
        alone.over
        and said
        == [
            "DeepSpeed's own steps take longer than those of the plan that was given up: 1200.0 ms (quartiles 1200.0 to 1200.0, 20 steps) instead of "
            "1020.0 ms (quartiles 1010.0 to 1030.0, 5 steps); the next start runs it"
        ]
        * told
    )


def test_with_nothing_to_compare_with_nothing_is_timed():
    assert Speedup([], Expected(0.0), 2).over
