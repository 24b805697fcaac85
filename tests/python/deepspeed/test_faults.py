# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, crash or are stopped at any instant of a training: the others end in bounded time and name the rank,
nothing is left behind, and a run that starts again from the last checkpoint has the losses of one that nothing happened to.

OSTINATO_SOAK_FAULTS=60 OSTINATO_SOAK_SEED=7 python -m pytest tests/python/deepspeed/test_faults.py
"""

import os
import time
from random import Random

import pytest
from support.fault_jobs import (
    BOUND_S,
    SIGNALS,
    STEPS,
    end,
    finish,
    kill,
    left_behind,
    losses_of,
    said_by,
    start_bare,
    wait_for,
    wave_plan,
)

FAULTS = int(os.environ.get("OSTINATO_SOAK_FAULTS", 2))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return wave_plan(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def undisturbed(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start_bare(plan, folder)) == [0, 0], said_by(folder, 0)
    return losses_of(folder, 0)


@pytest.mark.parametrize("seed", range(SEED, SEED + FAULTS))
def test_a_fault_at_any_instant(plan, undisturbed, tmp_path, seed):
    random = Random(seed)
    culprit, sent = random.randrange(2), SIGNALS[seed % len(SIGNALS)]
    ranks = start_bare(plan, tmp_path)
    steps = random.randrange(1, STEPS)
    assert wait_for(lambda: len(losses_of(tmp_path, culprit)) >= steps), said_by(tmp_path, culprit)
    time.sleep(random.uniform(0, 0.06))  # any instant of a step, its trace and its checkpoint, or the end
    kill(ranks[culprit].pid, sent)  # it is not waited for yet: there is such a process, even if it has ended
    other = ranks[1 - culprit]
    begin = time.monotonic()
    other.join(BOUND_S)
    stuck, said = other.is_alive(), said_by(tmp_path, 1 - culprit)
    print(f"seed {seed}: rank {culprit}, {sent.name}, after step {steps}: the other has ended after {time.monotonic() - begin:.1f} s")
    end(ranks)
    assert not stuck, said[-2000:]
    if not (tmp_path / f"{1 - culprit}.done").exists():  # else the fault came behind its training
        assert f"rank {culprit}" in said, f"rank {1 - culprit} does not name rank {culprit}: {said[-2000:]}"
    assert left_behind(tmp_path, [process.pid for process in ranks]) == []
    assert finish(start_bare(plan, tmp_path)) == [0, 0], said_by(tmp_path, 0)[-2000:]
    assert losses_of(tmp_path, 0) == undisturbed == losses_of(tmp_path, 1)
