# SPDX-License-Identifier: Apache-2.0
"""From a profile to the plan of one step whose micro-batches differ, and a plan's order with other sizes:
Python and the command line."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import commands
from support.profiles import write_profile
from test_search_sizes import STEP, V

import ostinato

SIZES = [700, 100, 2048, 300, 1500, 64]
TIMES = [30, 10, 40, 20, 25, 35]  # microseconds of a layer's forward


def step_file(path: Path, sizes=SIZES, of: int | None = 1024) -> Path:
    head = ['format = "ostinato-sizes/1"'] + ([f"size = {of}"] if of else [])
    path.write_text("\n".join([*head, *(f"[[micro_batches]]\nsize = {size}" for size in sizes)]) + "\n")
    return path


@pytest.fixture
def profile(tmp_path):
    return write_profile(tmp_path / "profile.json", TIMES)


def with_sizes(profile: Path, square: bool) -> Path:
    """The same, measured at three sizes: 512 takes half of 1024; 2048 twice as long, or four times."""
    told = json.loads(profile.read_text())
    told["tokens"] = 1024
    shares = {512: 0.5, 1024: 1, 2048: 4 if square else 2}
    told["sizes"] = [
        {
            "size": size,
            "forward": [int(1000 * t * share) for t in TIMES],
            "backward": [int(2000 * t * share) for t in TIMES],
        }
        for size, share in shares.items()
    ]
    profile.write_text(json.dumps(told))
    return profile


def test_command_and_python_give_the_same_bytes(profile, tmp_path):
    step = step_file(tmp_path / "step.toml")
    plan = tmp_path / "plan.json"
    placement = tmp_path / "placement.toml"
    options = f"--devices 2 --sizes {step} --effort 50 --output {plan} --placement-output {placement}"
    words = ["plan", profile, *options.split()]
    done = commands.ostinato(*words)
    assert done.returncode == 0, done.stderr
    assert "6 micro-batches of different sizes on 2 devices" in done.stdout
    given = {"devices": 2, "effort": 50}
    ours = ostinato.plan(ostinato.Profile.from_file(profile), sizes=SIZES, size=1024, **given)
    assert plan.read_text() == ours.text and placement.read_text() == ours.placement.text
    assert ours.text == ostinato.plan(ostinato.Profile.from_file(profile), sizes=step, **given).text
    assert ostinato.verify(ours), ostinato.verify(ours).failures
    assert commands.ostinato("verify", plan, placement).returncode == 0
    told = json.loads(commands.ostinato(*words, "--json").stdout)
    assert (
        told["chosen"] == told["candidates"][0]["name"]
        and told["makespan"] == told["candidates"][0]["makespan"] == ours.makespan
    )


def test_no_placement_that_was_tried_is_better(profile):
    found = ostinato.plan(ostinato.Profile.from_file(profile), devices=3, sizes=SIZES, size=1024)
    usual = ostinato.plan(ostinato.Profile.from_file(profile), devices=3, micro_batches=len(SIZES))
    assert found.makespan <= ostinato.search_sizes(usual.placement, SIZES, size=1024).makespan
    makespans = [row["makespan"] for row in found.report["candidates"]]
    assert makespans == sorted(makespans) and makespans[0] == found.makespan and len(makespans) > 3


@pytest.mark.parametrize("times", [[38, 38, 18, 14, 20, 2, 18], [22, 26, 29, 35, 5]])
def test_equal_sizes_are_no_worse_than_none(times, tmp_path):
    profile = ostinato.Profile.from_file(write_profile(tmp_path / "profile.json", times))
    alike = ostinato.plan(profile, devices=3, micro_batches=5)
    found = ostinato.plan(profile, devices=3, sizes=[10] * 5, size=10)
    assert found.makespan <= alike.makespan
    assert ostinato.verify(found), ostinato.verify(found).failures


@pytest.mark.parametrize("square", [False, True])
def test_times_follow_what_the_profile_measured(profile, square):
    measured = ostinato.Profile.from_file(with_sizes(profile, square))
    plan = ostinato.plan(
        measured, devices=2, sizes=[512, 1024, 1536, 2048, 256], all_devices=True, only=["moves"]
    )
    lengths = {(step.block, step.micro_batch): step.end - step.start for step in plan.schedule}
    of = lengths["s0.F", 1]
    factors = [lengths["s0.F", i] / of for i in range(5)]
    assert factors == pytest.approx([0.5, 1, 2.5, 4, 0.25] if square else [0.5, 1, 1.5, 2, 0.25], rel=1e-3)


def test_without_any_size_of_the_profile_it_is_asked_for(profile, tmp_path):
    with pytest.raises(ostinato.InputError, match="does not say the size"):
        ostinato.plan(ostinato.Profile.from_file(profile), devices=2, sizes=SIZES)
    done = commands.ostinato(
        "plan",
        profile,
        "--devices",
        2,
        "--sizes",
        step_file(tmp_path / "s.toml", of=None),
        "--output",
        tmp_path / "p",
        "--placement-output",
        tmp_path / "q",
    )
    assert done.returncode == 3 and "size = ..." in done.stderr


def test_a_size_that_contradicts_the_profile_is_refused(profile):
    measured = ostinato.Profile.from_file(with_sizes(profile, square=True))
    with pytest.raises(ostinato.InputError, match="size = 10 is given .* was measured with 1024"):
        ostinato.plan(measured, devices=2, sizes=[10, 20], size=10)


@pytest.mark.parametrize(
    "options", [{"inference": True}, {"shard": "0"}, {"split_backward": False, "keep_order": True}]
)
def test_other_options_go_with_it(profile, options):
    told = json.loads(profile.read_text())
    told["layers"][0]["shardable"] = True
    profile.write_text(json.dumps(told))
    found = ostinato.plan(
        ostinato.Profile.from_file(profile),
        devices=ostinato.Devices(2, hosts=((2, 1),)),
        sizes=SIZES,
        size=1024,
        **options,
    )
    assert ostinato.verify(found), ostinato.verify(found).failures


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sizes": []}, "sizes are empty"),
        ({"sizes": [-3]}, "a size is -3"),
        ({"sizes": [1], "size": -1}, "size is -1"),
        ({"sizes": [1, 2], "micro_batches": 3}, "'sizes' has 2 entries"),
        ({"sizes": [1], "replicas": 2}, "replicas"),
        ({"sizes": [1], "objective": "span"}, "objective"),
        ({"sizes": [1], "method": "1f1b"}, "method"),
        ({"sizes": [1], "effort": 0}, "effort needs a whole number from 1"),
        ({"micro_batches": 2, "keep_order": True}, "need sizes"),
        ({}, "micro_batches needs"),
    ],
)
def test_what_does_not_go_together_is_named(profile, given, said):
    with pytest.raises(ostinato.UsageError, match=said):
        ostinato.plan(
            ostinato.Profile.from_file(profile),
            devices=2,
            **({"size": 1024} if "sizes" in given else {}) | given,
        )


def test_a_file_for_a_placement_to_come_names_no_blocks(profile, tmp_path):
    (tmp_path / "step.toml").write_text(STEP)
    with pytest.raises(ostinato.InputError, match="'times' names blocks") as caught:
        ostinato.plan(ostinato.Profile.from_file(profile), devices=2, sizes=tmp_path / "step.toml")
    assert caught.value.line == 8


@pytest.mark.parametrize(
    "unit", ["time_unit = 1979-05-27", 'time_unit = "fortnight"', 'memory_unit = "parsec"', "memory_unit = 1"]
)
def test_a_unit_is_refused_alike_with_and_without_a_placement(profile, tmp_path, unit):
    step = step_file(tmp_path / "step.toml")
    step.write_text(step.read_text().replace("size = 1024", f"size = 1024\n{unit}"))
    (tmp_path / "v.toml").write_text(V.text)
    plans = ["plan", profile, "--devices", 2, "--placement-output", tmp_path / "placement.toml"]
    for words in (plans, ["search", tmp_path / "v.toml"]):
        done = commands.ostinato(*words, "--sizes", step, "--output", tmp_path / "plan.json")
        assert done.returncode == 3 and f"{step}:3: '{unit.split()[0]}' " in done.stderr, done.stderr


def test_no_memory_for_them_is_said(tmp_path):
    profile = write_profile(tmp_path / "p.json", TIMES, kept=1 << 20)
    with pytest.raises(ostinato.UndecidedError, match="alone needs more memory"):
        ostinato.plan(
            ostinato.Profile.from_file(profile), devices=2, sizes=[10, 1000], size=10, device_memory="16MiB"
        )


# ---- simulate


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
@example([3, 5, 0, 4])  # blocks of no time, which start together with others
def test_an_order_with_other_sizes_is_between_the_bound_and_1f1b(sizes):
    free = ostinato.placement("v", devices=3, forward=100, backward=200, memory=10)
    alike = ostinato.search(free, micro_batches=len(sizes), method="1f1b")
    best = ostinato.search_sizes(free, sizes, size=10, effort=10)
    took = ostinato.simulate(alike, sizes=sizes, size=10).at(0)
    assert took == best.facts["named"]["1f1b"]["makespan"] >= best.lower_bound
    assert ostinato.simulate(best, sizes=sizes, size=10).at(0) <= best.makespan
    assert (
        ostinato.simulate(best, sizes=[10] * len(sizes), size=10).at(0)
        >= ostinato.search(free, micro_batches=len(sizes)).lower_bound
    )


def test_simulate_with_a_file(tmp_path):
    V.save(tmp_path / "v.toml")
    ostinato.search(V, micro_batches=3).save(tmp_path / "plan.json")
    (tmp_path / "step.toml").write_text(STEP)
    words = ["simulate", tmp_path / "plan.json", tmp_path / "v.toml", "--sizes", tmp_path / "step.toml"]
    told = json.loads(commands.ostinato(*words, "--json").stdout)
    plan = ostinato.Plan.from_file(tmp_path / "plan.json", V)
    assert told["planned"] == told["worst"] == ostinato.simulate(plan, sizes=tmp_path / "step.toml").at(0)
    assert told["usual"]["schedule"] == "1f1b"
    shown = commands.ostinato(*words, "--explain").stdout
    assert "1f1b" in shown and "micro-batch" in shown and "#" not in shown


def test_what_an_order_cannot_hold_is_named(tmp_path):
    plan = ostinato.search(V, micro_batches=3)
    with pytest.raises(ostinato.InputError, match="order needs 60 B on device0, which has 40 B"):
        ostinato.simulate(plan, sizes=[20, 20, 20], size=10)
    with pytest.raises(ostinato.InputError, match="the plan has 3 micro-batches, but there are sizes for 2"):
        ostinato.simulate(plan, sizes=[1, 2], size=10)
    with pytest.raises(ostinato.UsageError, match="sizes are empty"):
        ostinato.simulate(plan, sizes=[])
