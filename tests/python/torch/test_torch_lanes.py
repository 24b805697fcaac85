# SPDX-License-Identifier: Apache-2.0
"""Experts in parts: all-to-alls on a lane, beside what the rank computes. From a profile that notes the lanes to a
training, with and without."""

from pathlib import Path
from types import SimpleNamespace

import ostinato
import pytest
import torch
from ostinato.profile.model.lanes import lane_of, mark_lanes
from support import lane_jobs
from support.profiles import write_profile

TIMES = [300, 200, 300, 200, 10] * 2  # of the parts of two blocks, in microseconds
LANES = [1, 3, 6, 8]


def planned(folder: Path, without: list[str]) -> ostinato.Plan:
    folder.mkdir()
    profile = ostinato.Profile.from_file(
        write_profile(folder / "profile.json", TIMES, lanes=dict.fromkeys(LANES, "network"))
    )
    plan = ostinato.plan(profile, devices=1, micro_batches=lane_jobs.MICRO_BATCHES, without=without)
    plan.save(folder / "plan.json")
    plan.placement.save(folder / "placement.toml")
    assert ostinato.verify(plan, profile=profile).passed
    return plan


def test_a_class_says_that_its_layers_run_on_a_lane():
    assert lane_of(lane_jobs.Dispatch()) == "network" and lane_of(lane_jobs.Gate()) == ""


@pytest.mark.parametrize(
    ("parameters", "lanes"), [((8, 0, 0), ["", "network", "network"]), ((8, 0, 8), ["", "", ""])]
)
def test_a_lane_is_not_used_where_one_of_its_layers_has_parameters(parameters, lanes):
    rows = [SimpleNamespace(parameters=count, lane="") for count in parameters]
    marked = mark_lanes(rows, [lane_jobs.Gate(), lane_jobs.Dispatch(), lane_jobs.Dispatch()])
    assert [row.lane for row in marked] == lanes


def test_exchanges_beside_the_computing_change_no_bit(world2, tmp_path):
    plans = {
        name: planned(tmp_path / name, without) for name, without in (("with", []), ("without", ["lanes"]))
    }
    # 5 micro-batches compute 3 x 620 us each, and exchange 3 x 400 us twice: all but the ends is hidden.
    assert plans["with"].makespan < 0.7 * plans["without"].makespan
    results = {name: world2.run(lane_jobs.train, str(tmp_path / name / "plan.json")) for name in plans}
    for beside, alone in zip(results["with"], results["without"], strict=True):
        assert beside["beside"] and not alone["beside"]
        assert beside["losses"] == alone["losses"]
        for mine, other in zip(beside["gradients"], alone["gradients"], strict=True):
            assert all(map(torch.equal, mine, other))


def test_plan_says_where_it_has_no_lanes_to_leave_out(tmp_path):
    profile = ostinato.Profile.from_file(write_profile(tmp_path / "profile.json", [100] * 4))
    with pytest.raises(ostinato.errors.UsageError, match="no layer on a lane"):
        ostinato.plan(profile, devices=2, micro_batches=2, only=["lanes"])
