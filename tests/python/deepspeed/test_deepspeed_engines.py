# SPDX-License-Identifier: Apache-2.0
"""Many engines in one process: what is ostinato's ends with each."""

import gc
import os
import threading

import pytest
import torch.distributed as dist
from ostinato.ranks.connection import connected
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from support.worlds import World
from torch.distributed.distributed_c10d import _get_default_store

ENGINES = int(os.environ.get("OSTINATO_SOAK_ENGINES", 3))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)


def left_by_engines(options: Options) -> tuple[float, float]:
    """Threads and descriptors that an engine leaves behind."""
    counts = []
    connected(_get_default_store())  # which one watch of the process makes, some day
    for _ in range(ENGINES + 1):
        engine = make_engine(options)
        engine.train_batch(data_of(engine))
        engine.destroy()
        del engine
        gc.collect()
        for thread in threading.enumerate():  # ends within a period
            if thread.name.startswith("ostinato-"):
                thread.join(60)
        gc.collect()
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    first, last = counts[0], counts[-1]
    return (last[0] - first[0]) / ENGINES, (last[1] - first[1]) / ENGINES


def test_an_engine_leaves_no_more_than_one_of_deepspeed(world2, plan):
    world2.restart()  # engines of other tests, which are still there, have threads that do not end
    stock = world2.run(left_by_engines, Options())
    world2.restart()
    ours = world2.run(left_by_engines, Options(section={"plan": str(plan)}))
    assert ours == stock


def destroyed_after_the_groups(options: Options) -> str:
    """What an engine says that a script destroys, or drops, once torch.distributed has ended."""
    engine = make_engine(options)
    dist.destroy_process_group()
    try:
        engine.destroy()
        engine.destroy()
    except Exception as error:
        return repr(error)
    return ""


def test_an_engine_may_be_destroyed_last(plan):
    with World(2) as world:
        assert world.run(destroyed_after_the_groups, Options(section={"plan": str(plan)})) == ["", ""]
