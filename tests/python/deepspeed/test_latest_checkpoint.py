# SPDX-License-Identifier: Apache-2.0
"""`latest` leads to a checkpoint that is whole: a rank that dies while it writes its part leaves it at the
one before."""

import os
import signal
from pathlib import Path

import pytest
from support.fault_jobs import wait_for
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, make_engine
from support.worlds import World


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    plan = make_plan(
        tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES
    )
    return Options(section={"plan": str(plan), "timeout_s": 20.0}, config={"zero_optimization": {"stage": 1}})


def die_while_saving(options: Options, culprit: int, folder: str) -> None:
    """Saves after step 1, and dies on `culprit` after step 2, before its last file, when the other has
    written all that it can."""
    from deepspeed import comm

    engine, mark = make_engine(options), Path(folder, "all is written")
    data, write, barrier = engine.batches(7), engine._save_zero_checkpoint, comm.barrier
    engine.train_batch(data)
    engine.save_checkpoint(folder)
    assert Path(folder, "latest").read_text() == "global_step1"  # on each rank, as soon as it returns
    engine.train_batch(data)

    def die(*_) -> None:
        wait_for(mark.exists)
        os.kill(os.getpid(), signal.SIGKILL)

    def waits(*args, **kwargs) -> None:
        mark.touch()
        barrier(*args, **kwargs)

    def write_and_wait(*args) -> None:
        write(*args)
        comm.barrier = waits

    engine._save_zero_checkpoint = die if engine.global_rank == culprit else write_and_wait
    engine.save_checkpoint(folder)


def resume(options: Options, folder: str) -> tuple[int, list[float]]:
    """Where it goes on, and the losses of two steps from there."""
    engine = make_engine(options)
    engine.load_checkpoint(folder)
    data, begun = engine.batches(7), engine.global_steps
    for _ in range(begun * MICRO_BATCHES):
        next(data)
    return begun, [engine.train_batch(data).item() for _ in range(2)]


def undisturbed(options: Options) -> list[float]:
    engine = make_engine(options)
    data = engine.batches(7)
    return [engine.train_batch(data).item() for _ in range(3)]


@pytest.mark.parametrize("culprit", everyday([0, 1], 1))
def test_a_rank_dies_before_its_part_is_written(options, world2, tmp_path, culprit):
    with World(2) as world, pytest.raises(AssertionError, match="the process ended"):
        world.run(die_while_saving, options, culprit, str(tmp_path))
    assert (tmp_path / "all is written").exists()
    assert (tmp_path / "latest").read_text() == "global_step1"
    losses = world2.run(undisturbed, options)
    assert world2.run(resume, options, str(tmp_path)) == [(1, losses[rank][1:]) for rank in range(2)]


def save_without_latest(options: Options, folder: str) -> tuple[bool, str]:
    """Whether it is there after a checkpoint without it, and what it holds after one more."""
    engine, latest = make_engine(options), Path(folder, "latest")
    engine.save_checkpoint(folder, "first", {"note": "kept"}, False)
    there = latest.exists()
    engine.save_checkpoint(folder, tag="second", save_latest=True)
    return there, latest.read_text()


def test_latest_only_where_it_is_asked_for(options, world2, tmp_path):
    assert world2.run(save_without_latest, options, str(tmp_path)) == [(False, "second")] * 2
