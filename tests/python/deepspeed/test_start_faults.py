# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, crash or are stopped while they make their engines or run their first transfers,
bare and under launchers; and launchers that are killed. Every rank ends in bounded time, the others name the
rank, and nothing is left behind.

Before an engine is made ranks wait in torch's and DeepSpeed's code, under theirs: these instants are not
drawn.

OSTINATO_SOAK_START_FAULTS=20 OSTINATO_SOAK_SEED=7 python -m pytest -s
tests/python/deepspeed/test_start_faults.py
"""

import os
import signal
import time
from random import Random

import pytest
from support.fault_jobs import (
    BOUND_S,
    SIGNALS,
    STEPS,
    all_starting,
    any_instant_of_the_start,
    end,
    is_running,
    kill,
    left_behind,
    losses_of,
    pid_of,
    said_by,
    start_bare,
    start_under,
    wait_for,
    wave_plan,
)
from support.tiers import everyday

FAULTS = int(os.environ.get("OSTINATO_SOAK_START_FAULTS", 1))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
SEEDS = range(SEED, SEED + FAULTS)
UNDER = [
    (launcher, victim, sent)
    for victim, sent in (
        ("launcher", signal.SIGKILL),
        ("rank", signal.SIGSTOP),
        ("rank", signal.SIGKILL),
        ("launcher", signal.SIGTERM),
    )
    for launcher in ("torchrun", "deepspeed")
]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return wave_plan(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def seconds(plan, tmp_path_factory):
    """From the start of making engines to the end of step 1."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ranks = start_bare(plan, folder)
    assert wait_for(lambda: all_starting(folder)), said_by(folder, 0)
    begin = time.monotonic()
    assert wait_for(lambda: losses_of(folder, 0)), said_by(folder, 0)
    taken = time.monotonic() - begin
    end(ranks)
    return taken


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sent", everyday(SIGNALS, signal.SIGKILL), ids=lambda sent: sent.name)
def test_a_rank_while_bare_ranks_start(plan, seconds, tmp_path, seed, sent):
    random = Random(f"bare {seed} {sent}")
    culprit = random.randrange(2)
    ranks = start_bare(plan, tmp_path)
    try:
        any_instant_of_the_start(tmp_path, random, seconds)
        kill(ranks[culprit].pid, sent)
        other, begin = ranks[1 - culprit], time.monotonic()
        other.join(BOUND_S)
        print(
            f"seed {seed}: rank {culprit}, {sent.name}: the other has ended after {time.monotonic() - begin:.1f} s"
        )
        said = said_by(tmp_path, 1 - culprit)
        assert not other.is_alive(), said[-2000:]
        # Before the signal came.
        finished = other.exitcode == 0 and len(losses_of(tmp_path, 1 - culprit)) == STEPS
        assert finished or f"rank {culprit}" in said, said[-2000:]
    finally:
        end(ranks)
    assert left_behind(tmp_path, [process.pid for process in ranks]) == []


def ended(
    plan, folder, seed: int, launcher: str, victim: int | str, sent: signal.Signals, seconds: float
) -> int:
    """Sends a signal to a rank, or to the "launcher". Its status; fails where a process is left."""
    process = start_under(launcher, plan, folder)
    pids = [process.pid]
    try:
        any_instant_of_the_start(folder, Random(f"{launcher} {seed} {victim} {sent}"), seconds)
        pids += [pid_of(folder, rank) for rank in range(2)]
        kill(process.pid if victim == "launcher" else pid_of(folder, victim), sent)
        begin = time.monotonic()
        status = process.wait(BOUND_S)
        left = not wait_for(lambda: not any(map(is_running, pids)))
        print(
            f"seed {seed}: {launcher}, {victim}, {sent.name}: all have ended after {time.monotonic() - begin:.1f} s"
        )
        assert not left, said_by(folder, 0)[-2000:] + said_by(folder, 1)[-2000:]
    finally:
        for pid in pids:
            kill(pid)
        process.wait()
    assert left_behind(folder, pids) == []
    return status


@pytest.mark.parametrize("seed", SEEDS)
def test_under_a_launcher(plan, seconds, tmp_path, seed):
    """A launcher ends the others of a rank that has ended, before they can name it, and names it itself; one
    that is stopped it does not notice. Ranks end with their launcher; where it could not tell them, they say
    why.
    """
    launcher, victim, sent = UNDER[(seed - 1) % len(UNDER)]
    culprit = Random(seed).randrange(2) if victim == "rank" else victim
    status = ended(plan, tmp_path, seed, launcher, culprit, sent, seconds)
    if victim == "launcher":
        assert sent == signal.SIGTERM or all(
            "the launcher is gone" in said_by(tmp_path, rank) for rank in range(2)
        ), said_by(tmp_path, 0)
        return
    assert status != 0
    names = f"rank {culprit}" in said_by(tmp_path, 1 - culprit)
    summary = said_by(tmp_path, "launcher")
    assert names or (
        sent != signal.SIGSTOP and (launcher == "deepspeed" or f"local_rank: {culprit}" in summary)
    ), summary[-2000:]
