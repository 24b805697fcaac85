"""Transfers between real processes, and how failures of theirs are told."""

import os

import pytest

from ostinato.profile import ProfileError, transfers


def test_both_directions_of_a_pair():
    costs = transfers.measure_transfers(2)
    assert [(cost.source, cost.target) for cost in costs] == [(0, 1), (1, 0)]
    assert costs[0].latency >= 0 and costs[0].residual >= 0
    assert (costs[0].latency, costs[0].bytes_per_second) == (costs[1].latency, costs[1].bytes_per_second)
    assert costs[0].latency > 0 or costs[0].bytes_per_second > 0


def test_one_rank_has_nobody_to_send_to():
    with pytest.raises(ProfileError, match="at least 2 ranks, got 1"):
        transfers.measure_transfers(1)


def test_a_rank_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "torch.py").write_text("raise SystemExit('no torch today')")
    with pytest.raises(ProfileError, match="rank 0 of the transfer measurement failed: no torch today") as raised:
        transfers.measure_transfers(2)
    assert raised.value.status == 7
