# SPDX-License-Identifier: Apache-2.0
"""The search as a user meets it: progress on a terminal, a time limit, signals, threads, choices, the curve
over memory."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest
from support.commands import begun, hard_placement, ostinato, output_of


@pytest.fixture
def hard(tmp_path):
    """The search is cut before it ends."""
    return hard_placement(tmp_path / "hard.toml")


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    times = ["--forward", "1ms", "--backward", "1ms", "--weight", "1ms"]
    output_of("placement", "v", "--devices", 4, *times, "--capacity", "3MiB", "--output", path)
    return path


def search(*words, **streams):
    return begun("search", *words, **streams)


def wait_until_searching(process):
    """The search takes SIGTERM while it runs: its handler shows in the process's caught signals."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None
        for line in open(f"/proc/{process.pid}/status"):
            if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
        time.sleep(0.01)
    raise AssertionError("the search did not begin")


def test_progress_is_drawn_on_a_terminal_and_wiped(tmp_path, hard):
    reader, terminal = pty.openpty()
    args = [hard, "--micro-batches", 32, "--time-limit", 1, "--output", tmp_path / "plan.json", "--json"]
    process = search(*args, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    drawn = b""
    while True:
        try:
            part = os.read(reader, 4096)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        drawn += part
    os.close(reader)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out)["status"] == 0
    text = drawn.decode()
    for word in ("best", "bound", "gap", " s  "):
        assert word in text
    assert text.endswith("\r\x1b[K")


def test_there_is_no_progress_where_standard_error_is_no_terminal(tmp_path, hard):
    result = ostinato(
        "search", hard, "--micro-batches", 32, "--time-limit", "0.01", "--output", tmp_path / "plan.json"
    )
    assert result.returncode == 0
    assert result.stderr == ""
    assert "stopped early" in result.stdout


def test_a_plan_that_a_limit_cut_says_so_and_holds(tmp_path, hard):
    plan = tmp_path / "plan.json"
    cut = ["search", hard, "--micro-batches", 32, "--time-limit", "0.01", "--output", plan]
    assert ostinato(*cut).returncode == 0
    assert ostinato(*cut, "--strict").returncode == 5
    assert json.loads(plan.read_text())["search"]["cut_by_limit"] is True
    assert ostinato("verify", plan, hard).returncode == 0


def test_what_is_proved_is_never_cut(tmp_path, small):
    """With so little time every search meets its limit, and this one its bound, too."""
    plan = tmp_path / "plan.json"
    told = ostinato(
        "search", small, "--micro-batches", 1, "--time-limit", "0.000001", "--output", plan, "--strict"
    )
    found = json.loads(plan.read_text())
    assert found["optimal"]["makespan"] and not found["search"]["cut_by_limit"]
    assert told.returncode == 0
    assert "optimal (proved)" in told.stdout and "stopped early" not in told.stdout


def test_a_curve_that_was_cut_names_the_memory_that_was_not_tried(tmp_path, hard):
    curve = tmp_path / "curve"
    cut = f"search {hard} --micro-batches 32 --time-limit 0.2 --pareto memory --output {curve}".split()
    result = ostinato(*cut)
    assert result.returncode == 0
    assert re.search(r"no memory between \S+ \w+ and \S+ \w+ was tried", result.stdout), result.stdout
    told = ostinato(*cut, "--strict", "--json")
    assert told.returncode == 5
    found = json.loads(told.stdout)
    assert found["cut_by_limit"] and 0 < found["untried_memory"]["above"] < found["untried_memory"]["below"]
    assert found["untried_memory"]["above"] == found["least_memory"]["memory"]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_curve_so_far(tmp_path, hard, number):
    curve = tmp_path / "curve"
    args = [hard, "--micro-batches", 64, "--time-limit", 0, "--pareto", "memory", "--output", curve]
    process = search(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until_searching(process)
    process.send_signal(number)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "was stopped early" in out
    plans = sorted(curve.iterdir())
    assert plans
    for plan in plans:
        assert ostinato("verify", plan, hard).returncode == 0


def test_threads_do_not_change_a_byte(tmp_path, small):
    def plan(threads):
        path = tmp_path / f"{threads}.json"
        args = ["--micro-batches", 8, "--time-limit", 0, "--threads", threads, "--output", path]
        assert ostinato("search", small, *args).returncode == 0
        return path.read_bytes()

    assert plan(1) == plan(2) == plan(3)


def test_the_curve_over_memory(tmp_path, small):
    curve = tmp_path / "curve"
    words = f"search {small} --micro-batches 8 --pareto memory --time-limit 0 --output {curve} --json"
    result = ostinato(*words.split())
    assert result.returncode == 0, result.stderr
    points = json.loads(result.stdout)["points"]
    # Room for 3 and 2 in flight.
    assert [point["makespan"] for point in points][:2] == [31_000_000, 41_000_000]
    for point in points:
        assert ostinato("verify", point["output"], small).returncode == 0
