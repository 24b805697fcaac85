# SPDX-License-Identifier: Apache-2.0
"""Plans from profiles of one model in several numbers of slices: pipeline x slices x replicas."""

import json
from pathlib import Path

import pytest
from support import commands
from support.profiles import write_profile

import ostinato
from ostinato.errors import InputError

WHOLE, HALVES = [100] * 8, [52] * 8


@pytest.fixture
def profiles(tmp_path: Path) -> list[Path]:
    """The slices hold the same memory as the whole layers here, and lack only time."""
    return [
        write_profile(tmp_path / "one.json", WHOLE),
        write_profile(tmp_path / "two.json", HALVES, slices=2),
    ]


def test_takes_the_division_with_the_shortest_step(profiles):
    both = [ostinato.Profile.from_file(path) for path in profiles]
    plan = ostinato.plan(both, devices=4, micro_batches=2, replicas=1)
    degrees = {(one["pipeline"], one["slices"], one["replicas"]): one for one in plan.report["degrees"]}
    assert set(degrees) == {(4, 1, 1), (2, 2, 1)}
    assert plan.report["makespan"] == min(one["step"] for one in degrees.values() if "step" in one)
    assert "num_pp=2, num_mp=2, num_dp=1" in " ".join(str(plan).split())
    with pytest.raises(InputError, match="no profile was made with 4 slices; those of the profiles: 1, 2"):
        ostinato.plan(both, devices=4, micro_batches=2, slices=4)


def test_a_device_stands_for_all_slices_where_none_are_asked_for(profiles):
    alone = ostinato.Profile.from_file(profiles[1])
    plan = ostinato.plan(alone, devices=4, micro_batches=4)
    assert "degrees" not in plan.report
    ranks = ostinato.plan(alone, devices=8, micro_batches=4, slices=2)
    assert [(one["pipeline"], one["slices"]) for one in ranks.report["degrees"]] == [(4, 2)]
    assert ranks.report["makespan"] == plan.report["makespan"]


def test_the_command_takes_several_profiles(profiles, tmp_path):
    outputs = ["--output", tmp_path / "plan.json", "--placement-output", tmp_path / "placement.toml"]
    asked = ["plan", *profiles, "--devices", "4", "--micro-batches", "4", *outputs]
    told = commands.ostinato(*asked, "--slices", "auto", "--replicas", "auto", "--json")
    assert told.returncode == 0, told.stderr
    assert {one["slices"] for one in json.loads(told.stdout)["degrees"]} == {1, 2}
    wrong = commands.ostinato(*asked, "--slices", "some")
    assert wrong.returncode == 2 and "--slices needs a whole number" in wrong.stderr
