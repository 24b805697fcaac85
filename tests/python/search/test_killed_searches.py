# SPDX-License-Identifier: Apache-2.0
"""A search that is killed at any instant leaves the plan that was there, or a whole one, and nothing else;
started again it finds it.

OSTINATO_SOAK_SEARCHES=100 OSTINATO_SOAK_SEED=7 python -m pytest tests/python/search/test_killed_searches.py
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

SEARCHES = int(os.environ.get("OSTINATO_SOAK_SEARCHES", 5))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
PLACEMENT = Path(__file__).resolve().parents[3] / "configs/m-shape-4.toml"


def search(plan: Path, micro_batches: int) -> subprocess.Popen:
    options = f"--micro-batches {micro_batches} --time-limit 0 --output {plan}"
    return subprocess.Popen(
        [sys.executable, "-m", "ostinato", "search", str(PLACEMENT), *options.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finished(process: subprocess.Popen) -> str:
    said = process.communicate(timeout=300)[1].decode()
    return said if process.returncode else ""


def test_a_search_that_is_killed(tmp_path):
    random, plan = Random(SEED), tmp_path / "out" / "plan.json"
    plan.parent.mkdir()
    begin = time.monotonic()
    assert finished(search(plan, 16)) == ""
    takes, whole = time.monotonic() - begin, {16: plan.read_bytes()}
    assert finished(search(plan, 24)) == ""
    whole[24] = plan.read_bytes()
    killed = 0
    while killed < SEARCHES:
        begin = time.monotonic()
        process = search(plan, random.choice([16, 24]))
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=random.uniform(0, 1.1 * takes))
        process.kill()
        if process.wait() == 0:
            takes = time.monotonic() - begin  # the first one ran beside something else
        killed += process.returncode != 0
        process.stderr.close()
        assert plan.read_bytes() in whole.values()
    for micro_batches in (16, 24):
        assert finished(search(plan, micro_batches)) == ""
        assert plan.read_bytes() == whole[micro_batches]
    assert [path.name for path in plan.parent.iterdir()] == ["plan.json"]
