# SPDX-License-Identifier: Apache-2.0
"""As many ranks as processes with tiny stages: equal losses, nothing that grows from step to step, and an
end.

OSTINATO_SOAK_RANKS=64 python -m pytest -s tests/python/torch/test_many_ranks.py
"""

import os
import re
from dataclasses import replace

import ostinato
import pytest
from support import many_ranks
from support.worlds import World

RANKS = int(os.environ.get("OSTINATO_SOAK_RANKS", 8))
MICRO_BATCHES = 8
TIMEOUT_S = 1800  # of a world; 64 ranks share few cores
PLANS = {"1f1b": ("v", 1, "1f1b"), "searched": ("looped", 2, "auto")}  # shape, chunks of a rank, method


@pytest.fixture
def world(tmp_path):
    """Ranks that write what they say into files."""
    with World(RANKS, timeout=TIMEOUT_S) as made:
        made.run(many_ranks.say_to, str(tmp_path))
        yield made
    assert not any(os.path.exists(f"/proc/{pid}") for pid in made.pids)


def said(folder) -> list[str]:
    """By ostinato."""
    return [
        line
        for file in sorted(folder.glob("*.txt"))
        for line in file.read_text().splitlines()
        if "ostinato" in line
    ]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    made = {}
    for name, (shape, chunks, method) in PLANS.items():
        folder, layers = tmp_path_factory.mktemp(name), RANKS * chunks
        placement = ostinato.placement(shape, devices=RANKS, chunks=chunks, layers=layers)
        placement.save(folder / "placement.toml")
        ostinato.search(placement, micro_batches=MICRO_BATCHES, method=method).save(folder / "plan.json")
        made[name] = many_ranks.Job(str(folder / "plan.json"), layers, MICRO_BATCHES)
    return made


def flat(ran, what: str) -> None:
    for rank, one in enumerate(ran):
        assert one.before == one.after, f"{what}: rank {rank}"
    most = {name: max(one.after[name] for one in ran) for name in ran[0].after}
    start, steps = (max(getattr(one, name) for one in ran) for name in ("start_s", "steps_s"))
    print(
        f"\n{RANKS} ranks, {what}: {start:.1f} s to start, {steps:.1f} s for {many_ranks.STEPS} steps, at most {most} a rank"
    )


def test_pipelines(world, jobs, tmp_path):
    """With the losses of one process; they end in good order and in silence, though the store's process must
    wait for all."""
    for name, job in jobs.items():
        ran = world.run(many_ranks.run, job)
        assert [one.losses for one in ran if None not in one.losses] == [many_ranks.alone(job)], name
        flat(ran, name)
    assert world.end(many_ranks.leave) == [0] * RANKS
    assert said(tmp_path) == []


@pytest.mark.slow  # test_deepspeed_training.py has four ranks, test_pipelines many
def test_deepspeed(world, jobs):
    """With the losses of DeepSpeed alone."""
    ours = world.run(many_ranks.train, jobs["searched"])
    flat(ours, "DeepSpeed with the searched plan")
    stock = world.run(many_ranks.train, replace(jobs["searched"], plan=""))
    flat(stock, "DeepSpeed alone")
    assert [one.losses for one in ours] == [one.losses for one in stock]


@pytest.mark.slow  # test_torch_pipeline.py names a rank that does not come, to one other rank
def test_all_give_up_at_once(world, jobs, tmp_path):
    """One rank does not come: every other one says for whom it waits, and takes nobody for dead who is only
    busy."""
    world.run(many_ranks.stall, jobs["1f1b"], 10.0)
    lines = said(tmp_path)
    # Others repeat what the first one said.
    own = [line for line in lines if re.match(r"ostinato: rank \d+ waited 10\.0 s for", line)]
    assert len(own) == RANKS - 1, lines
    assert any(f"rank {RANKS - 1} is in step 1, between steps" in line for line in lines), lines
    assert not any("did not answer" in line or "store" in line for line in lines), lines
