# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped, wherever a step is: the others say where they are and whom they wait for, and end
in bounded time."""

import os
import re
import signal
import threading
import time
from pathlib import Path
from unittest import mock

import deepspeed
import pytest
from ostinato.deepspeed.engine import engine as plan_engine
from ostinato.groups import everyones
from ostinato.ranks import presence
from support import training
from support.fault_jobs import said_by, wait_for
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from support.worlds import World

TIMEOUT_S = 3.0
BOUND_S = 60  # where six build on two processors; alone it takes TIMEOUT_S and six periods


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(
        tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES
    )


def stop_here(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def train_beside_a_stopped_rank(options: Options, stopped: int, where: str, folder: str) -> None:
    """Never returns on the rank that is stopped; the others leave in `folder` what they print, and how long
    it took."""
    rank, engine = training.dist.get_rank(), make_engine(options)
    engine.train_batch(data_of(engine))
    if rank == stopped and where == "optimizer":
        engine.optimizer.step = stop_here
    elif rank == stopped:
        engine.forward_stage = stop_here
    printed = os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 2)
    begin = time.monotonic()
    try:
        engine.train_batch(data_of(engine))
    finally:
        Path(f"{folder}/{rank}.seconds").write_text(str(time.monotonic() - begin))


ASKING = {
    "before": "_refuse_without_data", "after": "_tell_what_ran_whole", "evaluation": "_exec_schedule", "result": "_bcast_pipe_scalar",
    "saving": "_save_checkpoint",
}  # fmt: skip


def patience(where: str) -> float:
    """Seconds. Around a checkpoint it also counts while the ranks make their engines, one after the other."""
    return 30.0 if where == "saving" else 2.0


def ask_a_stopped_rank(options: Options, stopped: int, where: str, folder: str) -> None:
    """It stops before an exchange with the others that no executor makes: ours before and after the first
    step, DeepSpeed's of an evaluation and of a checkpoint."""
    presence.LEAST_S = patience(where)
    rank, engine = training.dist.get_rank(), make_engine(options)
    if rank == stopped:
        setattr(engine, ASKING[where], stop_here)
    os.dup2(os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    if where in ("before", "after"):
        engine.train_batch(data_of(engine))
    elif where == "saving":
        engine.save_checkpoint(f"{folder}/saved")
    else:
        engine.eval_batch(data_of(engine))


@pytest.mark.parametrize("stopped", everyday([0, 1], 1), ids=["rank_0_with_the_store", "rank_1"])
@pytest.mark.parametrize("where", everyday(ASKING, "after"))
def test_who_asks_a_stopped_rank_names_it(plan, tmp_path, monkeypatch, stopped, where):
    monkeypatch.setattr("support.worlds.GRACE", 0)  # for the rank that is stopped
    options = Options(
        section={"plan": str(plan), "timeout_s": TIMEOUT_S}, config={"zero_optimization": {"stage": 1}}
    )
    with World(2, timeout=BOUND_S + 60) as world, pytest.raises(AssertionError, match="the process ended"):
        world.run(ask_a_stopped_rank, options, stopped, where, str(tmp_path))
    said = (tmp_path / f"{1 - stopped}.err").read_text()
    call = {"before": "train_batch()", "after": "train_batch()", "saving": "saving a checkpoint"}.get(
        where, "eval_batch()"
    )
    assert f"rank {1 - stopped} (pipeline rank {1 - stopped}), step 1: {call}: " in said, said
    assert (
        "the store does not answer"
        if stopped == 0
        else f"rank 1 gave no sign of life for {patience(where):g} s"
    ) in said, said


def where_it_is(options: Options, folder: str) -> list[str]:
    """Between steps, and where a checkpoint begins to wait for the other rank."""
    engine, found = make_engine(options), []
    engine.train_batch(data_of(engine))

    def asked(mine, group=None):
        other = threading.Thread(target=lambda: found.append(str(engine._position())))
        other.start()
        other.join()
        return everyones(mine, group)

    asked(None)
    with mock.patch("ostinato.deepspeed.engine.plan_checkpoints.everyones", asked):
        engine.save_checkpoint(folder)
    return found


def test_a_rank_says_where_it_is_outside_of_a_step(plan, world2, tmp_path):
    for rank, found in enumerate(
        world2.run(where_it_is, Options(section={"plan": str(plan)}), str(tmp_path))
    ):
        script = rf"rank {rank} is in step 2, between steps, {re.escape(__file__)}:\d+, in asked"
        assert re.fullmatch(script, found[0]), found
        assert re.fullmatch(rf"rank {rank} is in step 2, busy \d+ ms with saving a checkpoint", found[1]), (
            found
        )


def where_it_says_it_is(options: Options) -> list[str]:
    """In a layer, and where losses are added: as in a run that was resumed after step 6, once shapes are forgotten; and
    in a layer of a second evaluation."""
    engine, found = make_engine(options), {}
    data = data_of(engine)
    engine.train_batch(data)
    engine.global_steps = 6
    engine.reset_activation_shape()

    def noted(name, call):
        def note(*given, **keywords):
            found[name] = str(engine._position())
            return call(*given, **keywords)

        return note

    engine.forward_stage = noted("layer", engine.forward_stage)
    with mock.patch(
        "deepspeed.runtime.pipe.engine.dist.broadcast", noted("losses", deepspeed.comm.broadcast)
    ):
        engine.train_batch(data)
    in_step = [found["layer"], found["losses"]]
    engine.eval_batch(data)
    engine.eval_batch(data, num_micro_batches=2 * MICRO_BATCHES)
    return [*in_step, found["layer"]]


def test_a_rank_names_the_step_as_the_engine_counts(plan, world2):
    for rank, found in enumerate(world2.run(where_it_says_it_is, Options(section={"plan": str(plan)}))):
        at, evaluation = r"at instruction \d+ of \d+ ", rf"evaluation 2 \(batches from {MICRO_BATCHES}\)"
        expected = [
            rf"step 7 {at}.*",
            r"step 7, busy \d+ ms with adding losses over ranks 0, 1",
            rf"{evaluation} {at}.*",
        ]
        for text, said in zip(expected, found, strict=True):
            assert re.fullmatch(f"rank {rank} is in {text}", said), found


def save_slowly(options: Options, folder: str) -> list[float]:
    """Rank 1 takes longer than the time-out."""
    presence.LEAST_S = 2.0
    engine = make_engine(options)
    save, data = engine._save_checkpoint, data_of(engine)

    def slowly(*args, **kwargs):
        if training.dist.get_rank() == 1:
            time.sleep(5)
        save(*args, **kwargs)

    engine._save_checkpoint = slowly
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    return [engine.train_batch(data).item() for _ in range(2)]


def test_a_checkpoint_takes_as_long_as_it_takes(plan, world2, tmp_path):
    results = world2.run(save_slowly, Options(section={"plan": str(plan), "timeout_s": 2.0}), str(tmp_path))
    assert results[0] == results[1]


@pytest.mark.parametrize("stopped", everyday([0, 1], 0), ids=["rank_0_with_the_store", "rank_1"])
@pytest.mark.parametrize("where", everyday(["forward", "optimizer"], "forward"))
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
    assert ("the store does not answer" if stopped == 0 else "rank 1 did not answer") in said, said


def train_beside_a_late_rank(options: Options, folder: str) -> list[float]:
    """Rank 1 begins a forward of step 2 when rank 0 has said that it waits for it."""
    plan_engine.late_after = lambda _: 1.0
    rank, engine = training.dist.get_rank(), make_engine(options)
    data, forward = engine.batches(7), engine.forward_stage
    losses = [engine.train_batch(data).item()]
    os.dup2(os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT), 2)

    def late(*given):
        engine.forward_stage = forward
        wait_for(lambda: "the run goes on" in said_by(Path(folder), 0))
        return forward(*given)

    if rank == 1:
        engine.forward_stage = late
    return [*losses, *(engine.train_batch(data).item() for _ in range(2))]


def three_steps(options: Options) -> list[float]:
    engine = make_engine(options)
    data = engine.batches(7)
    return [engine.train_batch(data).item() for _ in range(3)]


def test_a_late_rank_is_named_while_the_run_goes_on(plan, world2, tmp_path):
    options = Options(section={"plan": str(plan), "timeout_s": 2.0 * BOUND_S})
    with World(2) as world:
        losses = world.run(train_beside_a_late_rank, options, str(tmp_path))
    said = said_by(tmp_path, 0).splitlines()[0]
    assert (
        said.startswith("ostinato: rank 0 is in step 2 at instruction ")
        and " ms for " in said
        and " of rank 1 " in said
    ), said
    assert re.search(
        r"; rank 1 is in step 2 at instruction \d+ of \d+ \(\w+\), /\S+/fault_jobs.py:\d+, in wait_for: late, but the run goes on$",
        said,
    ), said
    assert losses == world2.run(three_steps, options)
