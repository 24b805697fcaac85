# SPDX-License-Identifier: Apache-2.0
"""Who is not where a rank waits, as its watch finds out."""

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch.distributed as dist
from ostinato.ranks.elsewhere import LOOKS, NAMED, Elsewhere
from ostinato.ranks.lateness import Lateness
from ostinato.ranks.position import Position
from ostinato.ranks.presence import Presence
from ostinato.ranks.watch import Watch


def busy(rank: int, what: str, over: str, step: int = 9, ms: int = 15000) -> Position:
    where = f"rank {rank} is in step {step}"
    return Position(where, "", ms, f"{what} over ranks {over}", f"{what} in step {step}")


def adds_losses(rank: int, **changed) -> Position:
    return busy(rank, "adding losses", **{"over": "0, 1", **changed})


def steps_its_optimizer(rank: int) -> Position:
    return busy(rank, "OptimizerStep", "0, 1", ms=15001)


def receives(rank: int) -> Position:
    return Position(
        f"rank {rank} is in step 9 at instruction 1 of 8 (1F0)", "1RECV_F0 (0SEND_F0 of rank 0)", 15000
    )


def is_in_a_layer(rank: int) -> Position:
    return Position(f"rank {rank} is in step 9 at instruction 0 of 8 (0F0)")


def is_between_steps(rank: int) -> Position:
    return Position(f"rank {rank} is in step 9, between steps")


def does_not_answer(rank: int) -> None:
    return None


def seen_from_rank_0(*where: Callable[[int], Position | None]) -> list[str]:
    """`where`: ranks 0, 1, 2, ... are."""
    store, places = dist.HashStore(), [is_at(rank) for rank, is_at in enumerate(where)]
    ranks = [Presence("test", rank, len(places), lambda at=at: at) for rank, at in enumerate(places)]
    elsewhere = Elsewhere(ranks[0])
    first = elsewhere.found(store, places[0])
    assert first is None, "nobody has been asked yet"
    for presence, at in zip(ranks, places, strict=True):
        if at is not None:
            presence.answer(store)
    for _ in range(LOOKS):
        if (found := elsewhere.found(store, places[0])) is not None:
            return found
    raise AssertionError("no end of looking")


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ([adds_losses, steps_its_optimizer], [1]),
        ([adds_losses, partial(adds_losses, over="2, 3", ms=3)], []),  # of another replica
        ([adds_losses, receives, is_between_steps], [2]),
        ([receives, receives, is_in_a_layer, adds_losses], [2, 3]),
        ([receives, receives], []),
        ([adds_losses, partial(adds_losses, step=8)], [1]),  # a step behind
    ],
)
def test_who_is_named(where, named):
    assert seen_from_rank_0(*where) == [str(where[rank](rank)) for rank in named]


def test_who_does_not_answer_is_named():
    told = seen_from_rank_0(adds_losses, adds_losses, does_not_answer, does_not_answer)
    assert told == ["ranks 2, 3 do not answer"]


def test_few_are_named_of_many():
    *named, rest = seen_from_rank_0(adds_losses, *[is_between_steps] * 9)
    assert len(named) == NAMED and rest == "5 more ranks elsewhere"


@pytest.mark.parametrize("at", [adds_losses(0), receives(1), is_in_a_layer(2)])
def test_a_position_passes_through_a_store(at):
    assert Position.from_text(at.to_text()) == at


def test_positions_in_words():
    assert str(adds_losses(0)) == "rank 0 is in step 9, busy 15000 ms with adding losses over ranks 0, 1"
    assert str(receives(1)) == (
        "rank 1 is in step 9 at instruction 1 of 8 (1F0), waiting 15000 ms for 1RECV_F0 (0SEND_F0 of rank 0)"
    )
    assert str(is_between_steps(2)) == "rank 2 is in step 9, between steps"


@pytest.mark.parametrize(("other", "says"), [(adds_losses, False), (is_between_steps, True)])
def test_a_watch_names_whoever_is_late_in_a_collective(capsys, other, says):
    """And is silent where all are there: a step's end, or a checkpoint, may take long."""
    store = dist.HashStore()
    places = [adds_losses(0), other(1)]
    watches = [
        Watch(
            store,
            "test",
            rank,
            2,
            lambda at=at: at,
            0.01,
            Presence("test", rank, 2, lambda at=at: at),
            late_s,
        )
        for rank, at, late_s in zip(range(2), places, (2.0, 1e9), strict=True)
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
    at, now = Position(""), 0.0
    lateness = Lateness(lambda: at, 2.0, lambda: now)
    for step in range(3):
        at, now = adds_losses(0, step=step, ms=3000), now + 1.0
        assert lateness.news() == at
        assert lateness.news() is None  # of this wait
        lateness.unsaid()
