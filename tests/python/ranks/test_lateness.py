# SPDX-License-Identifier: Apache-2.0
"""A rank says that it waits once a wait, and does not fill a log where it waits in every step."""

import pytest
from ostinato.ranks.lateness import Lateness
from ostinato.ranks.position import Position


class Rank:
    """One whose time the test moves; its watch looks each second, unless the rank is stopped."""

    def __init__(self, after_s: float):
        self.now_s, self.begun_s, self.step, self.lines = 0.0, None, 1, []
        self.lateness = Lateness(self.position, after_s, lambda: self.now_s)

    def position(self) -> Position:
        where = f"rank 0 is in step {self.step} at instruction 3 of 8 (2F0)"
        if self.begun_s is None:
            return Position(where)
        return Position(where, "2RECV_F0 (1SEND_F0 of rank 1)", round(1000 * (self.now_s - self.begun_s)))

    def looks(self) -> str:
        news = self.lateness.news()
        line = f"{news}{self.lateness.as_long()}" if news else ""
        self.lines += [line] if line else []
        return line

    def works(self, seconds: int) -> None:
        self.begun_s = None
        self._pass(seconds)

    def waits(self, seconds: int) -> None:
        self.begun_s = self.now_s
        self._pass(seconds)

    def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.looks()

    def steps(self, waits_s: int) -> None:
        self.waits(waits_s)
        self.works(1)
        self.step += 1


def test_a_wait_is_said_once():
    rank = Rank(after_s=2)
    rank.works(5)
    rank.waits(40)
    assert rank.lines == [
        "rank 0 is in step 1 at instruction 3 of 8 (2F0), waiting 2000 ms for 2RECV_F0 (1SEND_F0 of rank 1)"
    ]


def test_short_waits_are_not_said():
    rank = Rank(after_s=30)
    for _ in range(200):
        rank.steps(waits_s=29)
    assert rank.lines == []


def test_a_wait_in_every_step_does_not_fill_the_log():
    """For a day."""
    rank = Rank(after_s=30)
    while rank.now_s < 24 * 3600:
        rank.steps(waits_s=35)
    assert 24 <= len(rank.lines) <= 24 + 8
    others = [
        int(line.split("waited as long ")[1].split()[0]) for line in rank.lines if "waited as long" in line
    ]
    assert len(rank.lines) + sum(others) == pytest.approx(rank.step, abs=3600 / 35)


def test_a_wait_that_is_worse_is_said_at_once():
    rank = Rank(after_s=30)
    for _ in range(100):
        rank.steps(waits_s=35)
    before = len(rank.lines)
    rank.waits(61)
    assert len(rank.lines) == before + 1 and "waiting 60000 ms" in rank.lines[-1]


def test_a_wait_that_lasts_longer_than_the_quiet_is_said():
    rank = Rank(after_s=30)
    rank.steps(waits_s=30)
    rank.waits(58)
    assert len(rank.lines) == 1
    rank.now_s += 1
    assert rank.looks() == rank.lines[1] and "waiting 59000 ms" in rank.lines[1]


def test_a_rank_that_was_stopped_blames_nobody():
    """For a minute, while what it waits for came."""
    rank = Rank(after_s=30)
    rank.waits(2)
    rank.now_s += 60
    assert rank.looks() == ""
    rank.works(1)
    rank.waits(31)
    assert len(rank.lines) == 1
