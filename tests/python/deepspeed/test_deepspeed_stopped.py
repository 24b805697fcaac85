# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped, wherever a step is: the others say where they are and whom they wait for, and end in bounded time."""

import os
import signal
import time
from pathlib import Path

import pytest
from support import training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from support.worlds import World

TIMEOUT_S = 3.0
BOUND_S = 60  # where six build on two processors; alone it takes TIMEOUT_S and six periods


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)


def stop_here(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def train_beside_a_stopped_rank(options: Options, stopped: int, where: str, folder: str) -> None:
    """Never returns on the rank that is stopped; the others leave in `folder` what they print, and how long it took."""
    rank, engine = training.dist.get_rank(), make_engine(options)
    engine.train_batch(data_of(engine))
    if rank == stopped and where == "optimizer":
        engine.optimizer.step = stop_here
    elif rank == stopped:
        engine._exec_forward_pass = stop_here
    printed = os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 2)
    begin = time.monotonic()
    try:
        engine.train_batch(data_of(engine))
    finally:
        Path(f"{folder}/{rank}.seconds").write_text(str(time.monotonic() - begin))


@pytest.mark.parametrize("stopped", [0, 1], ids=["rank_0_with_the_store", "rank_1"])
@pytest.mark.parametrize("where", ["forward", "optimizer"])
def test_a_stopped_rank_silences_nobody(plan, tmp_path, monkeypatch, stopped, where):
    monkeypatch.setattr("support.worlds.GRACE", 0)  # for the rank that is stopped
    section = {"plan": str(plan), "timeout_s": TIMEOUT_S}
    options = Options(section=section, config={"gradient_clipping": 0.5, "zero_optimization": {"stage": 1}})
    with World(2, timeout=BOUND_S + 60) as world, pytest.raises(AssertionError):
        world.run(train_beside_a_stopped_rank, options, stopped, where, str(tmp_path))
    other = 1 - stopped
    said = (tmp_path / f"{other}.err").read_text()
    if where == "optimizer":
        held = f"rank {other} (pipeline rank {other}), step 2: OptimizerStep (norm and overflow over ranks 0, 1) takes longer than 3 s"
        assert held in said, said
    else:
        assert float((tmp_path / f"{other}.seconds").read_text()) < BOUND_S
        assert f"rank {other}" in said and f"rank {stopped}" in said, said
    assert ("the store does not answer" if stopped == 0 else "rank 1 said nothing") in said, said
