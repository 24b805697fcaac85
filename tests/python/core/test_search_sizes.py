# SPDX-License-Identifier: Apache-2.0
"""Plans for micro-batches of unequal size, from Python and from the command line: the same bytes, and what
both refuse."""

import json

import pytest
from support import commands
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato

V = ostinato.placement("v", devices=3, forward=100, backward=200, memory=10, capacity=40)
STEP = """format = "ostinato-sizes/1"
size = 10
time_unit = "ns"
[[micro_batches]]
size = 4
[[micro_batches]]
size = 25
times = { "s1.F" = 333 }
[[micro_batches]]
size = 11
"""
# V's micro-batch is of size 10.
SIZES = [{"size": 4}, {"size": 25, "times": {"s1.F": 333}}, {"size": 11}]


@pytest.fixture
def files(tmp_path):
    V.save(tmp_path / "v.toml")
    (tmp_path / "step.toml").write_text(STEP)
    return tmp_path


def test_command_file_and_objects_give_the_same_bytes(files):
    plan = files / "plan.json"
    done = commands.ostinato("search", files / "v.toml", "--sizes", files / "step.toml", "--output", plan)
    assert done.returncode == 0, done.stderr
    assert "3 micro-batches of different sizes" in done.stdout
    ours = ostinato.search_sizes(V, SIZES, size=10)
    assert plan.read_text() == ours.text == ostinato.search_sizes(V, files / "step.toml").text
    assert ostinato.Plan.from_file(plan, V) == ours
    for words in (["verify"], ["simulate"], ["show", "--width", "80"]):
        assert commands.ostinato(words[0], plan, files / "v.toml", *words[1:]).returncode == 0


def test_a_plan_has_the_times_of_its_micro_batches():
    plan = ostinato.search_sizes(V, SIZES, size=10)
    lengths = {(step.block, step.micro_batch): step.end - step.start for step in plan.schedule}
    assert lengths["s1.F", 1] == 333
    assert lengths["s0.F", 0] == 40
    assert lengths["s2.B", 2] == 220
    assert plan.to_dict()["sizes"][0]["memory"] == [4, 4, 4, -4, -4, -4]
    assert plan.facts["named"]["1f1b"]["makespan"] >= plan.makespan >= plan.lower_bound > 0
    assert max(step.end for step in plan.schedule) == plan.makespan
    assert ostinato.simulate(plan).at(0) == plan.makespan
    assert ostinato.explain(plan)
    assert "of different sizes" in str(plan)
    assert "<html" in plan.html()


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.integers(0, 3))
def test_every_plan_holds_and_no_order_of_entry_makes_its_bound_another(sizes, seed):
    plan = ostinato.search_sizes(V, sizes, size=10, effort=20, seed=seed)
    assert ostinato.verify(plan), ostinato.verify(plan).failures
    assert ostinato.search_sizes(V, sizes[::-1], size=10, effort=1).lower_bound == plan.lower_bound


@settings(max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=9))
def test_no_plan_is_worse_than_1f1b_given_or_sorted(sizes):
    plan = ostinato.search_sizes(V, sizes, size=10, effort=1)
    for order in (sizes, sorted(sizes), sorted(sizes, reverse=True)):
        usual = ostinato.search_sizes(V, order, size=10, effort=1).facts["named"]["1f1b"]
        assert plan.makespan <= usual["makespan"] or not usual["fits"]


def test_what_holds_it_up_is_told_with_the_names_of_the_plan():
    told = " ".join(
        ostinato.explain(ostinato.search_sizes(V, SIZES, size=10))
        + list(ostinato.verify(ostinato.search_sizes(V, SIZES, size=10)).passed)
    )
    assert "#" not in told
    assert "6 blocks, 3 micro-batches: each block runs exactly once for each micro-batch" in told


def test_what_cannot_be_is_refused(files):
    with pytest.raises(ostinato.InfeasibleError, match="alone needs more memory"):
        ostinato.search_sizes(V, [10, 50], size=10)
    with pytest.raises(ostinato.UsageError, match="no block 's9.F'"):
        ostinato.search_sizes(V, [{"times": {"s9.F": 1}}])
    with pytest.raises(ostinato.UsageError, match="not 'sise'"):
        ostinato.search_sizes(V, [{"sise": 1}])
    with pytest.raises(ostinato.UsageError, match="effort needs a whole number from 1"):
        ostinato.search_sizes(V, [1], effort=0)
    with pytest.raises(ostinato.InputError, match="no micro-batch"):
        ostinato.search_sizes(V, [])
    (files / "step.toml").write_text(STEP.replace("s1.F", "s1.G"))
    with pytest.raises(ostinato.InputError, match="did you mean 's1.F'") as caught:
        ostinato.search_sizes(V, files / "step.toml")
    assert caught.value.line == 8


def test_a_plan_of_sizes_is_lowered():
    texts = ostinato.lower(ostinato.search_sizes(V, [10, 20], size=10))
    assert len(texts) == len(V.devices) and all("F0" in text and "F1" in text for text in texts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pareto", "memory"], "combined with --pareto"), (["--objective", "span"], "--objective"), (["--micro-batches", 4], "has 3 micro-batches"),
        (["--method", "1f1b"], "--method"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_sizes_are_named(files, words, said):
    done = commands.ostinato(
        "search", files / "v.toml", "--sizes", files / "step.toml", "--output", files / "p.json", *words
    )
    assert done.returncode in (2, 3)
    assert said in done.stderr


def test_facts_are_what_the_command_prints(files):
    done = commands.ostinato(
        "search", files / "v.toml", "--sizes", files / "step.toml", "--output", files / "p.json", "--json"
    )
    told = json.loads(done.stdout)
    facts = ostinato.search_sizes(V, files / "step.toml").facts
    assert {key: told[key] for key in facts} == facts
