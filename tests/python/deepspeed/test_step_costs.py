# SPDX-License-Identifier: Apache-2.0
"""What micro-batches of several sizes cost in the search of a step's plan."""

import json

import pytest
from ostinato.deepspeed.data.costs import costs_of
from support.plans import Layout, placement_text

from ostinato import Placement, search_sizes, verify

HALVES = Layout("halves", (1,), (0, 1))
PLACEMENT = placement_text(HALVES, 2, forward=100, backward=200)  # microseconds a layer


def rows(*times):
    """Of two layers, the second's forward as long as the first's."""
    return [{"size": size, "forward": [forward, forward], "backward": [backward, backward]} for size, forward, backward in times]


def test_without_a_profile_they_grow_in_proportion_to_the_mean_of_the_first_step():
    costs = costs_of(PLACEMENT)
    assert costs.micro_batches([100, 300]) == ([100, 300], 200)
    assert costs.micro_batches([50, 50]) == ([50, 50], 200), "the reference stays"
    assert costs_of(PLACEMENT, size=128).micro_batches([64.5])[0] == [66048]


def test_a_profile_of_one_size_says_what_the_placement_is_of():
    assert costs_of(PLACEMENT, json.dumps({"tokens": 512})).micro_batches([256]) == ([256], 512)
    assert costs_of(PLACEMENT, json.dumps({"tokens": 512}), size=64).micro_batches([256]) == ([256], 64)


def test_times_follow_what_was_measured():
    profile = json.dumps({"tokens": 100, "sizes": rows((50, 10, 30), (100, 20, 40), (200, 80, 120))})
    (half, between), reference = costs_of(PLACEMENT, profile).micro_batches([50, 150])
    assert reference == 100
    assert half["times"]["s0.F"] == 50_000 and half["times"]["s1.B"] == 150_000  # 10/20 of 100 us, 30/40 of 200 us
    assert between["times"]["s0.F"] == 250_000 and between["times"]["s1.B"] == 400_000


def test_a_stage_that_recomputes_runs_its_forward_in_its_backward():
    text = PLACEMENT.replace('name = "s1"\nlayers = [1, 2]', 'name = "s1"\nlayers = [1, 2]\nrecompute = true')
    profile = json.dumps({"tokens": 100, "sizes": rows((50, 10, 30), (100, 20, 40))})
    (half,), _ = costs_of(text, profile).micro_batches([50])
    assert half["times"]["s0.B"] == 150_000
    assert half["times"]["s1.B"] == pytest.approx(200_000 * 40 / 60, abs=1)


def test_a_forward_that_runs_again_takes_what_the_profile_says():
    text = PLACEMENT.replace('name = "s1"\nlayers = [1, 2]', 'name = "s1"\nlayers = [1, 2]\nrecompute = true')
    measured = rows((50, 10, 30), (100, 20, 40))
    whole = {"tokens": 100, "sizes": measured}
    layers = [{"forward": {"median": row}} for row in measured[1]["forward"]]
    half = [{**layer, "recompute": layer["forward"]["median"] / 2} for layer in layers]
    points = [costs_of(text, json.dumps({**whole, "layers": these})).curves["s1.B"] for these in ([], layers, half)]
    assert points[0] == points[1]
    for (size, all_of_it), (_, half_of_it), row in zip(points[0], points[2], measured, strict=True):
        assert row["size"] == size and all_of_it - half_of_it == row["forward"][1] / 2


def test_a_plan_of_such_costs_is_proved_and_never_worse_than_1f1b():
    profile = json.dumps({"tokens": 100, "sizes": rows((50, 10, 30), (100, 20, 40), (200, 80, 120))})
    batches, size = costs_of(PLACEMENT, profile).micro_batches([200, 40, 90, 170, 60, 50])
    free, kept = (search_sizes(Placement.from_text(PLACEMENT), batches, size=size, keep_order=keep) for keep in (False, True))
    assert bool(verify(free)) and bool(verify(kept))
    assert free.makespan <= kept.makespan
    backwards = [step.micro_batch for step in kept.schedule if step.block == "s0.B"]
    assert backwards == sorted(backwards)
