# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, crash or are stopped at any instant of a training: the others end in bounded time and name the rank,
nothing is left behind, and a run that starts again from the last checkpoint has the losses of one that nothing happened to.

OSTINATO_SOAK_FAULTS=60 OSTINATO_SOAK_SEED=7 python -m pytest tests/python/deepspeed/test_faults.py
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support import training, worlds
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, make_engine

FAULTS = int(os.environ.get("OSTINATO_SOAK_FAULTS", 2))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
STEPS, SAVED_EVERY = 20, 4
TIMEOUT_S = 3.0
BOUND_S = 90  # for a machine on which much else runs; alone it takes TIMEOUT_S and six seconds
SIGNALS = (signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV)  # test_deepspeed_stopped.py has the first one, too


def rank_of(options: Options, rank: int, size: int, port: int, folder: str) -> None:
    """A bare rank: from the last checkpoint, if there is one, to the last step. A line in `folder` for each step."""
    os.environ.update(worlds.environment(rank, size, port))
    printed = os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(printed, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    worlds._begin()
    engine = make_engine(options)
    saved = Path(folder) / "saved"
    if (saved / "latest").exists():
        engine.load_checkpoint(str(saved))
    data = engine.batches(7)
    for _ in range(engine.global_steps * MICRO_BATCHES):
        next(data)
    with open(f"{folder}/{rank}.losses", "a") as losses:
        for step in range(engine.global_steps, STEPS):
            losses.write(f"{step} {engine.train_batch(data).item()!r}\n")
            losses.flush()
            if (step + 1) % SAVED_EVERY == 0:
                mark = Path(f"{folder}/{rank}.saving")
                mark.touch()
                engine.save_checkpoint(str(saved))
                mark.unlink()
    training.dist.barrier()


def start(options: Options, folder: Path) -> list:
    port = worlds.free_port()
    ranks = [worlds.forked().Process(target=rank_of, args=(options, r, options.stages, port, str(folder))) for r in range(options.stages)]
    for process in ranks:
        process.start()
    return ranks


def losses_of(folder: Path, rank: int) -> dict[int, str]:
    """By step; what was trained twice must have had the same loss."""
    found: dict[int, str] = {}
    path = folder / f"{rank}.losses"
    for line in path.read_text().splitlines() if path.exists() else ():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"rank {rank}, step {step}"
    return found


def wait_for(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def is_saving(folder: Path, rank: int) -> bool:
    return (folder / f"{rank}.saving").exists()


def finish(ranks: list) -> list[int]:
    for process in ranks:
        process.join(BOUND_S)
        process.kill()
        process.join()
    return [process.exitcode for process in ranks]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    plan = make_plan(tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)
    section = {"plan": str(plan), "timeout_s": TIMEOUT_S, "trace": "trace"}
    return Options(section=section, config={"gradient_clipping": 0.5, "zero_optimization": {"stage": 1}})


@pytest.fixture(scope="module")
def undisturbed(options, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start(traced_to(options, folder), folder)) == [0, 0]
    return losses_of(folder, 0)


def traced_to(options: Options, folder: Path) -> Options:
    return replace(options, section=options.section | {"trace": str(folder / "trace")})


@pytest.mark.parametrize("seed", range(SEED, SEED + FAULTS))
def test_a_fault_at_any_instant(options, undisturbed, tmp_path, seed):
    random = Random(seed)
    options = traced_to(options, tmp_path)
    culprit, sent = random.randrange(options.stages), SIGNALS[seed % len(SIGNALS)]
    ranks = start(options, tmp_path)
    steps = random.randrange(1, STEPS)
    begun = wait_for(lambda: len(losses_of(tmp_path, culprit)) >= steps, BOUND_S)
    assert begun, (tmp_path / f"{culprit}.err").read_text()
    time.sleep(random.uniform(0, 0.06))  # any instant of a step, its trace and its checkpoint, or the end
    os.kill(ranks[culprit].pid, sent)  # it is not waited for yet: there is such a process, even if it has ended
    others = {rank: process for rank, process in enumerate(ranks) if rank != culprit}
    for rank, process in others.items():
        # Checkpoints are DeepSpeed's own, and under no time-out: whoever waits for a stopped rank there is not waited for.
        wait_for(lambda r=rank, p=process: not p.is_alive() or (sent == signal.SIGSTOP and is_saving(tmp_path, r)), BOUND_S)
    stuck = {rank for rank, process in others.items() if process.is_alive() and not is_saving(tmp_path, rank)}
    for process in ranks:
        process.kill()
        process.join()
    assert not stuck, (tmp_path / f"{stuck.pop()}.err").read_text()[-2000:]
    for rank, process in others.items():
        if process.exitcode != 0 and not is_saving(tmp_path, rank):  # 0: it had done its part
            said = (tmp_path / f"{rank}.err").read_text()
            assert f"rank {culprit}" in said, f"rank {rank} does not name rank {culprit}: {said[-2000:]}"
    for rank in range(options.stages):
        (tmp_path / f"{rank}.saving").unlink(missing_ok=True)
    assert [str(path) for path in tmp_path.rglob(".ostinato*")] == []
    assert finish(start(options, tmp_path)) == [0] * options.stages, (tmp_path / "0.err").read_text()[-2000:]
    assert losses_of(tmp_path, 0) == undisturbed == losses_of(tmp_path, 1)
