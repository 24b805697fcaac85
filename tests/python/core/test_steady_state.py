# SPDX-License-Identifier: Apache-2.0
"""ostinato.steady_state: what `search --steady-state --json` says, as an object."""

import json

import ostinato
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato import _search


def told_by_the_command(capfd, path) -> dict:
    assert _search.main(["search", str(path), "--steady-state", "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("shape", ["v", "m", "nn", "k", "wave"])
def test_it_is_what_the_command_says(shape, tmp_path, capfd):
    placement = ostinato.placement(shape, devices=4, forward=100, backward=300, memory=1, capacity=9)
    placement.save(tmp_path / "p.toml")
    told, found = told_by_the_command(capfd, tmp_path / "p.toml"), ostinato.steady_state(placement)
    for key in ("period", "unroll", "lower_bound", "period_proved", "memory_proved"):
        assert getattr(found, key) == told[key]
    assert found.peak_memory == tuple(told["peak_memory"]) and found.left_behind == ()


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(2, 4), st.integers(1, 6))
def test_no_plan_has_a_better_rate(forward, capacity, micro_batches):
    """Any plan, one step after the other, is a repeating part, too."""
    placement = ostinato.placement(
        "v", devices=len(forward), forward=forward, backward=1, memory=1, capacity=capacity
    )
    found = ostinato.steady_state(placement)
    assert found.period >= found.lower_bound >= (max(forward) + 1) * found.unroll
    assert max(found.peak_memory) <= capacity
    plan = ostinato.search(placement, micro_batches=micro_batches)
    assert found.period_proved and plan.makespan * found.unroll >= found.period * micro_batches


def test_memory_that_is_never_the_same_twice_is_said_so(tmp_path):
    text = ostinato.placement("v", devices=2, memory="1MiB", inference=True).text
    assert text.count('kind = "forward"\n') == 2
    leaky = ostinato.Placement.from_text(text.replace("[[blocks]]\n", "[[blocks]]\nmemory = 1\n", 1))
    found = ostinato.steady_state(leaky)
    assert found.peak_memory is None and found.left_behind == (2**20, 0) and found.period_proved


def test_what_fits_nowhere_is_refused_with_the_proof():
    with pytest.raises(ostinato.InfeasibleError, match="memory|fit"):
        ostinato.steady_state(ostinato.placement("v", devices=2, memory=3, capacity=2))
