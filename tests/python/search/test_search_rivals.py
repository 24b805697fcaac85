# SPDX-License-Identifier: Apache-2.0
"""The search finds what CP-SAT proves, on random uneven placements that CP-SAT solves in under half a second
each.

The whole benchmark is tests/bench/search_rivals.py; docs/search.md has its figures.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("ortools", reason="ortools is not installed: pip install ostinato[test]")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import cpsat_model
from random_placements import random_placement, with_lanes

# Splits, chains, skip edges and branches; memory for one micro-batch and for several; links with and without
# bandwidth.
LANES = [0, 2, 3, 6, 9]
SEEDS = [0, 4, 7, 11, 13, 16, 23, 25, 27, 38]


CASES = [(seed, random_placement) for seed in SEEDS] + [(seed, with_lanes) for seed in LANES]


@pytest.mark.parametrize(("seed", "drawn"), CASES)
def test_the_makespan_is_the_optimum_that_cpsat_proves(seed, drawn, tmp_path):
    text, micro_batches = drawn(seed)
    placement, plan = tmp_path / "placement.toml", tmp_path / "plan.json"
    placement.write_text(text)
    command = [sys.executable, "-m", "ostinato"]
    words = f"search {placement} --micro-batches {micro_batches} --time-limit 0 --output {plan}"
    searched = subprocess.run([*command, *words.split()], capture_output=True, timeout=300)
    assert searched.returncode == 0
    assert (
        subprocess.run([*command, "verify", plan, placement], capture_output=True, timeout=300).returncode
        == 0
    )

    rival = cpsat_model.solve(tomllib.loads(text), micro_batches, limit=5, threads=1)
    assert rival.proved
    ours = json.loads(plan.read_text())
    assert ours["makespan"] == rival.makespan
    assert ours["lower_bound"]["makespan"] <= rival.makespan
