# SPDX-License-Identifier: Apache-2.0
"""Who is not where a rank waits, as its watch finds out."""

import time

import pytest
import torch.distributed as dist
from ostinato.ranks.elsewhere import LOOKS, NAMED, Elsewhere, in_a_collective
from ostinato.ranks.lateness import Lateness
from ostinato.ranks.presence import Presence
from ostinato.ranks.watch import Watch

LOSSES = "busy 15000 ms with adding losses over ranks 0, 1"
OPTIMIZER = "busy 15001 ms with OptimizerStep (norm and overflow over ranks 0, 1)"
RECEIVES = "at instruction 1 of 8 (1F0), waiting 15000 ms for 1RECV_F0 (0SEND_F0 of rank 0)"


def seen_from_rank_0(mine: str, others: list[str | None]) -> list[str]:
    """`others`: where ranks 1, 2, ... are; None: they do not answer."""
    store = dist.HashStore()
    ranks = [
        Presence("test", rank, 1 + len(others), lambda it=it: it) for rank, it in enumerate([mine, *others])
    ]
    elsewhere = Elsewhere(ranks[0])
    first = elsewhere.found(store, mine)
    assert first is None, "nobody has been asked yet"
    for presence, it in zip(ranks, [mine, *others], strict=True):
        if it is not None:
            presence.answer(store)
    for _ in range(LOOKS):
        if (found := elsewhere.found(store, mine)) is not None:
            return found
    raise AssertionError("no end of looking")


@pytest.mark.parametrize(
    ("mine", "others", "named"),
    [
        (LOSSES, [OPTIMIZER], [0]),
        (LOSSES, [LOSSES.replace("15000", "3").replace("0, 1", "2, 3")], []),  # of another replica
        (LOSSES, [RECEIVES, "between steps"], [1]),
        (RECEIVES, [RECEIVES, "at instruction 0 of 8 (0F0)", LOSSES], [1, 2]),
        (RECEIVES, [RECEIVES], []),
    ],
)
def test_who_is_named(mine, others, named):
    positions = [f"rank {rank} is in step 9, {words}" for rank, words in enumerate([mine, *others])]
    assert seen_from_rank_0(positions[0], positions[1:]) == [positions[1 + index] for index in named]
    assert in_a_collective(positions[0]) == (mine == LOSSES)


def test_who_is_a_step_behind_is_named():
    positions = [f"rank {rank} is in step {9 - rank}, {LOSSES}" for rank in range(2)]
    assert seen_from_rank_0(positions[0], positions[1:]) == [positions[1]]


def test_who_does_not_answer_is_named():
    assert seen_from_rank_0(
        f"rank 0 is in step 9, {LOSSES}", [f"rank 1 is in step 9, {LOSSES}", None, None]
    ) == ["ranks 2, 3 do not answer"]


def test_few_are_named_of_many():
    *named, rest = seen_from_rank_0(
        f"rank 0 is in step 9, {LOSSES}",
        [f"rank {rank} is in step 9, between steps" for rank in range(1, 10)],
    )
    assert len(named) == NAMED and rest == "5 more ranks elsewhere"


@pytest.mark.parametrize(("other", "says"), [(LOSSES, False), ("between steps", True)])
def test_a_watch_names_whoever_is_late_in_a_collective(capsys, other, says):
    """And is silent where all are there: a step's end, or a checkpoint, may take long."""
    store = dist.HashStore()
    places = [f"rank {rank} is in step 9, {it}" for rank, it in enumerate([LOSSES, other])]
    watches = [
        Watch(
            store,
            "test",
            rank,
            2,
            lambda it=it: it,
            0.01,
            Presence("test", rank, 2, lambda it=it: it),
            late_s,
        )
        for rank, it, late_s in zip(range(2), places, (2.0, 1e9), strict=True)
    ]
    end = time.monotonic() + 60
    while not watches[0]._lateness._told and time.monotonic() < end:
        time.sleep(0.01)
    while watches[0]._late and time.monotonic() < end:
        time.sleep(0.01)
    for watch in watches:
        watch.close()
        watch._thread.join(60)
    line = f"ostinato: {places[0]}; {places[1]}: late, but the run goes on\n"
    assert capsys.readouterr().err == (line if says else "")


def test_news_that_nobody_needs_make_nothing_quiet():
    """A long wait of which nothing is said, and the next is as long."""
    position, now = "", 0.0
    lateness = Lateness(lambda: position, 2.0, lambda: now)
    for step in range(3):
        position, now = (
            f"rank 0 is in step {step}, busy 3000 ms with adding losses over ranks 0, 1",
            now + 1.0,
        )
        assert lateness.news() == position
        assert lateness.news() == ""  # of this wait
        lateness.unsaid()
