# SPDX-License-Identifier: Apache-2.0
"""The demo as a user runs it, with few steps: every file that it promises, and losses equal bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(job, out):
    command = [sys.executable, ROOT / "examples" / "demo.py", "--job", job, "--steps", "3", "--out", out]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout, json.loads((out / "summary.json").read_text())


def check_result(result, folder):
    assert result["losses"]["ostinato"] == result["losses"]["deepspeed_1f1b"]
    assert len(result["losses"]["ostinato"]) == 3
    makespan = result["makespan_seconds"]
    # With the optimizer's.
    assert makespan["lower_bound"] <= makespan["ostinato"] < result["step_seconds"]["predicted"]
    assert result["step_seconds"]["measured"] > 0
    for name in ("profile.json", "placement.toml", "plan.json", "plan.html", "programs.txt", "trace.json"):
        assert (folder / name).stat().st_size > 0, name
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_byte_level_gpt(tmp_path):
    out, summary = demo("gpt", tmp_path)
    check_result(summary, tmp_path)
    assert "3 of 3 losses are equal bit for bit" in out
    assert ("ranks share" in out) == (len(os.sched_getaffinity(0)) < 2)


@pytest.mark.slow  # test_byte_level_gpt has the same steps with another model
def test_emulated_stages_run_several_chunks_a_rank_as_planned(tmp_path):
    out, summary = demo("emulated", tmp_path)
    check_result(summary["emulated"], tmp_path / "emulated")
    assert "DeepSpeed 1F1B takes" in out
    # Ranks sleep, so no step can be shorter than the plan; and the plan is shorter than 1F1B's best.
    predicted = summary["emulated"]["step_seconds"]
    assert predicted["predicted"] < predicted["1f1b"]
    chunks = (tmp_path / "emulated" / "placement.toml").read_text().count("[[stages]]")
    assert chunks > 4  # on 4 ranks; how many are shortest is as measured


@pytest.mark.parametrize("arguments", [["--job", "gtp"], ["--steps", "x"]])
def test_usage_errors_are_refused(arguments):
    command = [sys.executable, ROOT / "examples" / "demo.py", *arguments]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 2
