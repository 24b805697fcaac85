# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, crash, are stopped, raise, run out of memory or disk, or hold something else than
the others, at any instant of a training: the others end in bounded time and name the rank and where it was,
nothing is left behind, and a run that starts again from the last checkpoint has the losses of one that
nothing happened to. A rank that is late is named while the run goes on, and NaNs are 1F1B's.

OSTINATO_SOAK_FAULTS=20 OSTINATO_SOAK_SEED=7 python -m pytest -s tests/python/deepspeed/test_faults.py [-k
optimizer]
"""

import os
import re
import signal
import time
from dataclasses import replace
from random import Random

import pytest
from support.fault_jobs import (
    SAVED_EVERY,
    SIGNALS,
    STEPS,
    WHOLE_S,
    end,
    finish,
    is_running,
    kill,
    layout_plan,
    left_behind,
    losses_of,
    pid_of,
    said_by,
    start_bare,
    start_under,
    wait_for,
)
from support.harms import CALM, CUTS, NO_HARM, PLACES, Harm, draw
from support.plans import Layout

SOAK = int(os.environ.get("OSTINATO_SOAK_FAULTS", 0))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
LAYOUTS = {
    "wave": Layout("wave", CUTS, (0, 1, 1, 0)),  # two ranks that each wait for the other
    "looped": Layout("looped", CUTS, (0, 1, 0, 1)),
    "line": Layout("line", CUTS, (0, 1, 2, 3)),
}
# What survivors say of where the culprit was: the instruction that they miss, the part of the step, or its
# own words.
WHERE = r"instruction \d+|OptimizerStep|adding losses|saving a checkpoint|the store (of the process group )?is gone|making its engine"
SEEDS = range(SEED, SEED + (SOAK or 1))
HARMS = [(what, where) for what, places in PLACES.items() for where in places]
ENDING = ("raises", "memory", "disk")
EVERY_NIGHT = [("raises", "optimizer"), ("disk", "checkpoint")]  # the rest where SOAK


class Job:
    """A training under way: bare ranks, or some under a launcher."""

    def __init__(self, plan, folder, ranks: int, harm: Harm, launcher: str = ""):
        self.folder, self.ranks, self._launcher = folder, range(ranks), launcher
        self._started = (
            [start_under(launcher, plan, folder, ranks, harm)]
            if launcher
            else start_bare(plan, folder, ranks, harm)
        )

    def pid(self, rank: int) -> int:
        return pid_of(self.folder, rank) if self._launcher else self._started[rank].pid

    def wait(self, ranks) -> list[int | str]:
        """Those that have not ended in time, and the launcher, which has its own time for ranks that it ends."""
        pids: dict[int | str, int] = {rank: self.pid(rank) for rank in ranks}
        if self._launcher:
            pids["launcher"] = self._started[0].pid
        wait_for(lambda: not any(map(is_running, pids.values())))
        return [who for who, pid in pids.items() if is_running(pid)]

    def end(self) -> list[int]:
        """Of whatever is left. All pids."""
        pids = [process.pid for process in self._started]
        if self._launcher:
            self._started[0].terminate()  # it ends ranks that have not said yet which process they are
            wait_for(lambda: self._started[0].poll() is not None)
            pids += [self.pid(rank) for rank in self.ranks if (self.folder / f"{rank}.pid").exists()]
            for pid in pids:
                kill(pid)
            self._started[0].wait()
        else:
            end(self._started)
        return pids

    def said(self) -> str:
        return "\n".join(
            f"rank {rank}:\n{said_by(self.folder, rank)[-2000:]}" for rank in (*self.ranks, "launcher")
        )


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    made = {}

    def plan(layout: str):
        if layout not in made:
            made[layout] = layout_plan(tmp_path_factory.mktemp(layout), LAYOUTS[layout])
        return made[layout]

    return plan


@pytest.fixture(scope="module")
def undisturbed(plan_of, tmp_path_factory):
    """Losses by layout: which ranks build a layer decides what it begins with."""
    made: dict[str, dict[int, str]] = {}

    def losses(layout: str) -> dict[int, str]:
        if layout not in made:
            folder = tmp_path_factory.mktemp("undisturbed")
            made[layout] = trained(plan_of(layout), folder, LAYOUTS[layout])
        return made[layout]

    return losses


def ranks_of(layout: Layout) -> int:
    return 1 + max(layout.ranks)


def trained(plan, folder, layout: Layout, harm: Harm = CALM) -> dict[int, str]:
    """The losses of a training that comes to its end, which are equal on all ranks."""
    ranks = ranks_of(layout)
    assert finish(start_bare(plan, folder, ranks, harm)) == [0] * ranks, "\n".join(
        said_by(folder, rank)[-2000:] for rank in range(ranks)
    )
    losses = losses_of(folder, 0)
    assert all(losses_of(folder, rank) == losses for rank in range(1, ranks))
    return losses


def drawn(random: Random) -> tuple[str, str]:
    """A layout, and a launcher where there is one: now and then four ranks, and now and then torchrun."""
    if not SOAK:
        return "wave", ""
    return random.choice(["wave", "wave", "looped", "looped", "line"]), "torchrun" * (
        random.randrange(8) == 0
    )


def expect_named(job: Job, culprit: int, sent=None) -> None:
    """By each rank that was not done. A launcher may end the others first, and names the rank itself."""
    for rank in job.ranks:
        if rank == culprit or (job.folder / f"{rank}.done").exists():
            continue
        said = said_by(job.folder, rank)
        by_launcher = f"local_rank: {culprit}" in said_by(job.folder, "launcher")
        if not (by_launcher and sent != "SIGSTOP"):
            assert f"rank {culprit}" in said and re.search(WHERE, said), (
                f"rank {rank} does not name rank {culprit}:\n{said[-3000:]}"
            )


def expect_it_ends(job: Job, culprit: int, stopped: bool, words: str) -> None:
    """All of it, but for a rank that is stopped; nothing is left."""
    begin = time.monotonic()
    stuck = job.wait([rank for rank in job.ranks if not (stopped and rank == culprit)])
    print(f"{words}: ended after {time.monotonic() - begin:.1f} s")
    pids = job.end()
    assert not stuck, f"{stuck} did not end\n{job.said()}"
    assert left_behind(job.folder, pids) == []


def resumes(plan, folder, layout: str, undisturbed) -> None:
    assert trained(plan, folder, LAYOUTS[layout]) == undisturbed(layout)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sent", SIGNALS if SOAK else SIGNALS[SEED % 3 :][:1], ids=lambda sent: sent.name)
def test_a_signal_at_any_instant(plan_of, undisturbed, tmp_path, sent, seed):
    random = Random(f"{sent} {seed}")
    layout, launcher = drawn(random)
    job = Job(plan_of(layout), tmp_path, ranks_of(LAYOUTS[layout]), NO_HARM, launcher)
    culprit, steps = random.choice(job.ranks), random.randrange(1, STEPS)
    try:
        assert wait_for(lambda: len(losses_of(tmp_path, culprit)) >= steps, WHOLE_S), job.said()
        time.sleep(random.uniform(0, 0.06))  # any instant of a step, its trace and its checkpoint, or the end
        # Bare, it is not waited for yet: there is such a process, even if it has ended.
        kill(job.pid(culprit), sent)
        words = f"seed {seed}: {layout}{launcher and ' under ' + launcher}: rank {culprit}, {sent.name}, after step {steps}"
        expect_it_ends(job, culprit, sent == signal.SIGSTOP, words)
    finally:
        job.end()
    expect_named(job, culprit, sent.name)
    resumes(plan_of(layout), tmp_path, layout, undisturbed)


def harmed(plan_of, folder, layout: str, launcher: str, harm, seed) -> Job:
    """A run that has ended in time after the harm came, which one that differs from the others meets before
    its first step."""
    job = Job(plan_of(layout), folder, ranks_of(LAYOUTS[layout]), harm, launcher)
    try:
        assert wait_for(lambda: all((folder / f"{rank}.starting").exists() for rank in job.ranks), WHOLE_S), (
            job.said()
        )
        if harm.what != "differs":
            wait_for(
                lambda: len(losses_of(folder, harm.rank)) >= harm.step or not is_running(job.pid(harm.rank)),
                WHOLE_S,
            )
        expect_it_ends(
            job,
            harm.rank,
            False,
            f"seed {seed}: {layout}{launcher and ' under ' + launcher}: rank {harm.rank} {harm.in_words}",
        )
    finally:
        job.end()
    return job


@pytest.mark.slow  # test_deepspeed_features.py has an error in a layer, test_a_signal_at_any_instant a rank that ends, and resuming
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("what", "where"), [h for h in HARMS if h[0] in ENDING and (SOAK or h in EVERY_NIGHT)]
)
def test_a_rank_that_fails(plan_of, undisturbed, tmp_path, what, where, seed):
    random = Random(f"{what} {where} {seed}")
    layout, launcher = drawn(random)
    harm = draw(random, what, where, LAYOUTS[layout], STEPS, SAVED_EVERY)
    job = harmed(plan_of, tmp_path, layout, launcher, harm, seed)
    assert not (tmp_path / f"{harm.rank}.done").exists(), "nothing has happened"
    expect_named(job, harm.rank)
    resumes(plan_of(layout), tmp_path, layout, undisturbed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("where", PLACES["late"] if SOAK else [])
def test_a_rank_that_is_late(plan_of, undisturbed, tmp_path, where, seed):
    random = Random(f"late {where} {seed}")
    layout, _ = drawn(random)
    # The others wait for it once more.
    harm = draw(random, "late", where, LAYOUTS[layout], STEPS - 1, SAVED_EVERY)
    assert trained(plan_of(layout), tmp_path, LAYOUTS[layout], harm) == undisturbed(layout)
    others = [rank for rank in range(ranks_of(LAYOUTS[layout])) if rank != harm.rank]
    lines = {
        rank: [
            line
            for line in said_by(tmp_path, rank).splitlines()
            if line.endswith(": late, but the run goes on")
        ]
        for rank in others
    }
    unnamed = [rank for rank, said in lines.items() if not any(f"rank {harm.rank}" in line for line in said)]
    print(f"seed {seed}: {layout}: rank {harm.rank} {harm.in_words}: {[*lines.values()]}")
    assert not unnamed, f"rank {harm.rank} {harm.in_words}: {unnamed}\n{lines}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("where", PLACES["nan"] if SOAK else [])
def test_nan_is_what_1f1b_makes_of_it(plan_of, tmp_path, where, seed):
    random = Random(f"nan {where} {seed}")
    layout, _ = drawn(random)
    harm = draw(random, "nan", where, LAYOUTS[layout], STEPS, SAVED_EVERY)
    for folder in (ours := tmp_path / "ours", alone := tmp_path / "alone"):
        folder.mkdir()
    losses = trained(plan_of(layout), ours, LAYOUTS[layout], harm)
    print(
        f"seed {seed}: {layout}: {harm.in_words} of layer {harm.layer}: {sum(loss == 'nan' for loss in losses.values())} losses are NaN"
    )
    assert losses[harm.step] == "nan" and losses == trained(None, alone, LAYOUTS[layout], harm)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("where", PLACES["differs"] if SOAK else [])
def test_a_rank_that_holds_something_else(plan_of, tmp_path, where, seed):
    random = Random(f"differs {where} {seed}")
    layout, launcher = drawn(random)
    harm = draw(random, "differs", where, LAYOUTS[layout], STEPS, SAVED_EVERY)
    other = replace(LAYOUTS[layout], ranks=tuple(reversed(LAYOUTS[layout].ranks)), cuts=(1, 3, 5))
    harm = replace(harm, given=str(layout_plan(tmp_path / "other", other)))
    job = harmed(plan_of, tmp_path, layout, launcher, harm, seed)
    assert not losses_of(tmp_path, 0)
    said = said_by(tmp_path, 0)
    assert f"rank {harm.rank}" in said, f"rank {harm.rank} {harm.in_words}\n{job.said()}"
