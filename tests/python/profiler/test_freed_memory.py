# SPDX-License-Identifier: Apache-2.0
"""What is freed stays with the process, in the profiler and under a plan on a CPU."""

import os
import platform
import resource
import subprocess
import sys

import pytest
import torch
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, make_engine

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone can keep it")
ROUND = 64  # tensors of a MiB, 256 pages each


def faults() -> int:
    """Page faults of taking and freeing them once more: the fewest of some rounds, for the first ones find a
    heap in pieces."""
    rounds = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        taken = [torch.zeros(1 << 18) for _ in range(ROUND)]
        del taken
        rounds.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(rounds)


def in_a_process(code: str, **environment: str) -> str:
    kept_out = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    program = "from ostinato.profile.machine import freed_memory; from test_freed_memory import faults; "
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    made = subprocess.run(
        [sys.executable, "-c", program + code],
        env=kept_out | environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_it_is_kept():
    # One for each page, which may be a huge one.
    given_back = int(in_a_process("print(faults())", MALLOC_MMAP_THRESHOLD_="131072"))
    assert int(in_a_process("assert freed_memory.keep(); print(faults())")) < min(ROUND, given_back)


@pytest.mark.parametrize("name", everyday(["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"], "GLIBC_TUNABLES"))
def test_whoever_has_said_how_is_left_alone(name):
    value = "131072" if name.startswith("MALLOC") else "glibc.malloc.trim_threshold=131072"
    assert in_a_process("print(freed_memory.keep())", **{name: value}) == "False"


def test_a_plan_keeps_it(world2, tmp_path):
    plan = make_plan(tmp_path, Layout("looped", (2, 4, 6), (0, 1, 0, 1)), 8, MICRO_BATCHES)
    assert max(world2.run(faults_under, Options(section={"plan": str(plan)}))) < ROUND


def faults_under(options: Options) -> int:
    make_engine(options)
    return faults()
