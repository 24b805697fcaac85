# SPDX-License-Identifier: Apache-2.0
"""Random models and plans on real ranks whose sends end only when they are received: none hangs, and the
numbers are those of one process.

OSTINATO_SOAK_RENDEZVOUS=2000 OSTINATO_SOAK_SEED=7 python -m pytest -s
tests/python/executor/test_rendezvous.py
"""

import os
import re
from collections import Counter

import numpy
import pytest
from support import rendezvous
from support.plans import Layout, make_plan
from support.random_programs import RANKS, drawn
from support.worlds import World

RUNS = int(os.environ.get("OSTINATO_SOAK_RENDEZVOUS", 15))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
AT_ONCE = 20  # runs for which the ranks are asked together


@pytest.fixture(scope="module")
def world():
    with World(RANKS, timeout=600) as made:
        yield made


def check(case, found) -> None:
    """What each rank found, against one process."""
    expected, seen = rendezvous.alone(case), Counter()
    for world_rank, of_rank in enumerate(found):
        assert (of_rank is None) == (world_rank not in case.members), case
        for s, mine in (of_rank or {}).items():
            part, rank = case.stages[s], case.members.index(world_rank)
            assert rank in part.ranks
            seen[s] += 1
            close(
                mine["results"],
                expected[s]["results"],
                f"seed {case.seed}, {case.what}: results of stage {s} on rank {rank}",
            )
            assert mine["gradients"].keys() == expected[s]["gradients"].keys(), (
                f"seed {case.seed}, {case.what}: stage {s}"
            )
            for name, whole in expected[s]["gradients"].items():
                cut = numpy.array_split(whole, len(part.ranks))[
                    sorted(case.members[r] for r in part.ranks).index(world_rank)
                ]
                close(
                    mine["gradients"][name],
                    cut,
                    f"seed {case.seed}, {case.what}: gradient {name} of stage {s} on rank {rank}",
                )
    assert seen == {s: len(part.ranks) for s, part in enumerate(case.stages)}, case


def close(found, expected, what: str) -> None:
    numpy.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=what)


def test_random_plans_on_ranks_that_meet(world, tmp_path):
    kinds = Counter()
    for first in range(SEED, SEED + RUNS, AT_ONCE):
        cases = [
            drawn(seed, tmp_path / str(seed)) for seed in range(first, min(first + AT_ONCE, SEED + RUNS))
        ]
        for case, found in zip(cases, zip(*world.run(rendezvous.run, cases), strict=True), strict=True):
            check(case, found)
            form, order = re.fullmatch(
                r"(\w+)-\d+: ([\w -]+), \d ranks, \d micro-batches", case.what
            ).groups()
            kinds[form] += 1
            kinds[order] += 1
            kinds["forwards alone"] += not case.trains
            kinds["with shards"] += any(len(part.ranks) > 1 for part in case.stages)
    print(f"\n{RUNS} runs on {RANKS} processes: {dict(kinds)}")


def test_orders_that_wait_for_each_other_end(world, tmp_path):
    """Rank 0 waits for the first gradient before its last forward, rank 1 for the last activations before its
    first backward. Nobody lowers that; the two plans are right, each for both ranks."""
    plans = [
        make_plan(tmp_path / method, Layout("chain", (1,), (0, 1), method=method), 2, 3)
        for method in ("1f1b", "gpipe")
    ]
    files = [(str(plan), str(plan.with_name("placement.toml"))) for plan in plans]
    assert set(world.run(rendezvous.run_orders, [files[0], files[0]], 120.0)) == {"it ran", ""}
    said = world.run(rendezvous.run_orders, files, 2.0)
    world.restart()  # messages of theirs are under way
    # Which of its messages, a busy machine may decide: the gradient of micro-batch 0 or the activations of
    # micro-batch 2. So it may who is first to give up; that one closes its connections, and who began later
    # hears of it before its own 2 s are over.
    waited = [
        re.search(rf"rank {rank} waited 2.0 s for {rank}RECV_", said[rank]) is not None for rank in (0, 1)
    ]
    closed = [
        re.search(
            rf"rank {rank}: {rank}RECV_\w+ from rank {1 - rank}, instruction \d+ failed: .*", said[rank]
        )
        is not None
        for rank in (0, 1)
    ]
    assert any(waited), said
    assert all(w or c for w, c in zip(waited, closed, strict=True)), said
    assert said[2:] == ["", ""]
