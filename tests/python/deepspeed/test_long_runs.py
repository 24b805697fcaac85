# SPDX-License-Identifier: Apache-2.0
"""Step after step: a training holds no more memory, descriptors and threads at its end than near its begin.

OSTINATO_SOAK_STEPS=10000 python -m pytest tests/python/deepspeed/test_long_runs.py
"""

import gc
import os
from dataclasses import replace

import pytest
from ostinato.ranks.connection import connected
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from support.worlds import World
from torch.distributed.distributed_c10d import _get_default_store

STEPS = int(os.environ.get("OSTINATO_SOAK_STEPS", 75))
PAGES = os.sysconf("SC_PAGESIZE")


def held() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/statm") as statm:
        memory = int(statm.read().split()[1]) * PAGES
    return {
        "memory": memory,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def steps_and_what_is_held(
    options: Options, steps: int
) -> tuple[dict[str, int], dict[str, int], list[float]]:
    """What is held after a fifth of the steps and after all, and the last losses."""
    connected(_get_default_store())  # which the watch makes, some day
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(steps // 5):
        engine.train_batch(data)
    before = held()
    losses = [engine.train_batch(data).item() for _ in range(steps - steps // 5)][-5:]
    return before, held(), losses


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    plan = make_plan(folder, Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)
    return Options(
        section={"plan": str(plan), "trace": str(folder / "trace")},
        config={"zero_optimization": {"stage": 1}},
    )


@pytest.fixture
def world(world2):
    """One with more time where the run is long."""
    if STEPS <= 1000:
        yield world2
    else:
        with World(2, timeout=STEPS, runs=1) as long:
            yield long


def test_steps(world, options):
    ours = world.run(steps_and_what_is_held, options, STEPS)
    stock = world.run(steps_and_what_is_held, replace(options, section=None), STEPS)
    for (before, after, losses), (stock_before, stock_after, stock_losses) in zip(ours, stock, strict=True):
        assert losses == stock_losses
        assert {name: after[name] for name in ("descriptors", "threads")} == {
            name: before[name] for name in ("descriptors", "threads")
        }
        grown = after["memory"] - before["memory"]
        stock_grown = stock_after["memory"] - stock_before["memory"]
        print(
            f"{STEPS} steps: {grown / 2**20:+.1f} MiB with a plan, {stock_grown / 2**20:+.1f} MiB with DeepSpeed alone, of {after['memory'] / 2**20:.0f}"
        )
        assert grown <= max(stock_grown, 0) + 2**20 + 300 * STEPS, (
            "a step may leave its time behind, and no more"
        )
