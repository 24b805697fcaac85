# SPDX-License-Identifier: Apache-2.0
"""Rank 0 says which devices have become slow, without waiting for any rank."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist
from ostinato.deepspeed.tell import drift
from ostinato.deepspeed.tell.drift import EVERY, SAMPLED, WARM_UP, BlockTimes, Drift
from ostinato.measured import Measured

MS = 1_000_000


def program_of(device: int) -> SimpleNamespace:
    """Two micro-batches of a stage: forwards of 1 ms, backwards of 2 ms."""
    rows = [("F", 0, 1), ("F", 1, 2), ("B", 2, 4), ("B", 4, 6)]
    made = [SimpleNamespace(stage=device, action=a, start=s * MS, end=e * MS) for a, s, e in rows]
    return SimpleNamespace(instructions=lambda _: made)


class Rank:
    """One of several, in one process."""

    def __init__(self, monkeypatch, rank: int, ranks: int, store):
        self._patch, self._rank, self._slow = monkeypatch, rank, 1.0
        self._program, self._step = program_of(rank), 0
        monkeypatch.setattr(dist, "get_world_size", lambda *_: ranks)
        monkeypatch.setattr(drift, "_engines", iter([0]))
        self._drift = Drift(BlockTimes(self._program, rank, EVERY // SAMPLED), store)

    def records(self):
        rows = enumerate(self._program.instructions(0))
        return [(index, i.start, i.start + round(self._slow * (i.end - i.start))) for index, i in rows]

    def run(self, steps: int, slow: float = 1.0) -> None:
        self._slow = slow
        self._patch.setattr(dist, "get_rank", lambda *_: self._rank)
        for _ in range(steps):
            self._step += 1
            self._drift.step(self._program, self, self._step)


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(drift, "say", lines.append)
    return lines


def run(ranks: list[Rank], steps: int, *slow: float) -> None:
    for _ in range(steps // EVERY):
        for rank, factor in zip(ranks, slow, strict=True):
            rank.run(EVERY, factor)


@pytest.fixture
def three(monkeypatch):
    def made() -> list[Rank]:
        store = dist.HashStore()
        ranks = [Rank(monkeypatch, rank, 3, store) for rank in range(3)]
        for rank in ranks:
            rank.run(WARM_UP, 9.0)
        return ranks

    return made


def test_nothing_is_said_where_all_is_as_planned(said, three):
    run(three(), 5 * EVERY, 1.0, 1.1, 1.05)
    assert said == []


def test_a_slow_device_is_said_once_and_that_it_is_over(said, three):
    ranks = three()
    run(ranks, 6 * EVERY, 1.0, 1.5, 1.0)
    assert [line.partition(": ")[2] for line in said] == [
        'device 1 takes 1.50 times as long as planned, compared with the median device; "adapt" would plan again'
    ]
    said.clear()
    run(ranks, 4 * EVERY, 1.0, 1.0, 1.0)
    assert [line.partition(": ")[2] for line in said] == ["blocks take as long as planned again"]


def test_one_comparison_is_noise(said, three):
    ranks = three()
    for slow in (1.0, 1.6, 1.0, 0.5, 1.0):
        run(ranks, EVERY, 1.0, slow, 1.0)
    assert said == []


def test_what_all_blocks_have_in_common_is_said_once_it_changes(said, three):
    ranks = three()
    run(ranks, 3 * EVERY, 1.3, 1.3, 1.3)
    assert said == []
    run(ranks, 4 * EVERY, 1.56, 1.56, 1.56)
    assert [line.partition(": ")[2] for line in said] == [
        'all blocks take 1.20 times as long as at first; "adapt" would plan again'
    ]


@pytest.mark.parametrize(
    "devices, overall, said",
    [
        ({0: 1.0, 1: 1.06}, 2.0, ["all blocks take 2.00 times as long as planned"]),
        (
            {0: 1.0, 1: 1.84},
            1.37,
            [
                "device 1 takes 1.84 times as long as planned, compared with the other device",
                "blocks on the faster of the two devices take 1.37 times as long as planned",
            ],
        ),
        (
            {0: 0.5, 1: 1.0, 2: 1.0},
            0.8,
            [
                "device 0 takes 0.50 times as long as planned, compared with the median device",
                "blocks on the median device take 0.80 times as long as planned",
            ],
        ),
        ({0: 1.0, 1: 1.1}, 1.1, []),
    ],
)
def test_figures_say_what_they_are_relative_to(devices, overall, said):
    found = Measured({}, {}, overall, devices)
    assert drift.slow_devices(found) + drift.overall_change(found, overall, "planned") == said


def test_a_rank_that_is_late_is_not_waited_for(said, three):
    ranks = three()
    ranks[0].run(3 * EVERY, 1.0)
    assert said == []


def test_steps_of_another_program_are_not_compared(said, three):
    ranks = three()
    ranks[0]._drift.step(program_of(0), None, 3)
    assert said == []
