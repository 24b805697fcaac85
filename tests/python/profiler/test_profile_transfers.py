# SPDX-License-Identifier: Apache-2.0
"""Transfers between real processes, and how failures of theirs are told."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ostinato.groups import TRANSFER_CTAS
from ostinato.profile import ProfileError, main
from ostinato.profile.machine import transfers
from ostinato.profile.machine.device import Cpu
from ostinato.profile.machine.wire import Seat, backend_of

MADE_UP_GPUS = Path(__file__).parents[1] / "support" / "made_up_gpus.py"


def test_both_directions_of_a_pair():
    costs = transfers.measure_transfers(2)
    assert [(cost.source, cost.target) for cost in costs] == [(0, 1), (1, 0)]
    assert costs[0].latency >= 0 and costs[0].residual >= 0
    assert (costs[0].latency, costs[0].bytes_per_second) == (costs[1].latency, costs[1].bytes_per_second)
    assert costs[0].latency > 0 or costs[0].bytes_per_second > 0
    assert {cost.backend for cost in costs} == {"gloo"}


def pairs_on_two_hosts():
    """What ranks 3, 2, 1 and 0, as the stages of a pipeline, cost each other: 0 and 1 share a host, 2 and 3 another."""
    measured = []

    def measure_pairs(wire, rank, pairs):
        measured.extend(pairs)
        return [[*pair, [(1 << 10, 1000 * sum(pair))], "gloo"] for pair in pairs if rank == pair[0]]

    with (
        mock.patch("socket.gethostname", lambda: "ab"[dist.get_rank() // 2]),
        mock.patch.object(transfers, "measure_pairs", measure_pairs),
    ):
        costs = transfers.measure_kinds([3, 2, 1, 0], Cpu())
    return measured, {(cost.source, cost.target): cost.latency for cost in costs}


def test_a_pair_of_a_host_and_one_of_two_stand_for_all(world4):
    for measured, latency in world4.run(pairs_on_two_hosts):
        assert sorted(measured) == [(3, 1), (3, 2)]
        assert len(latency) == 12
        assert len(set(latency.values())) == 2
        assert len({latency[pair] for pair in ((0, 1), (1, 0), (2, 3), (3, 2))}) == 1
        assert len({latency[pair] for pair in ((0, 2), (0, 3), (1, 2), (3, 1))}) == 1


def test_one_rank_has_nobody_to_send_to():
    with pytest.raises(ProfileError, match="at least 2 ranks, got 1"):
        transfers.measure_transfers(1)


def test_a_rank_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "torch.py").write_text("raise SystemExit('no torch today')")
    with pytest.raises(
        ProfileError, match="rank [01] of the transfer measurement failed: no torch today"
    ) as raised:
        transfers.measure_transfers(2)
    assert raised.value.status == 7


def test_the_rank_that_fails_first_is_named(monkeypatch, tmp_path):
    """Under mpirun, of which the processes do not inherit their local rank."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    (tmp_path / "falls.py").write_text(
        "import os, sys, time\n"
        "time.sleep(60 * (sys.argv[1] == '0'))\n"
        "sys.exit('OMPI_COMM_WORLD_LOCAL_RANK' in os.environ and 'mpirun' or 'no memory')\n"
    )
    with (
        transfers.processes(2, tmp_path, Cpu(), "falls") as started,
        pytest.raises(ProfileError, match="rank 1 of the transfer measurement failed: no memory"),
    ):
        transfers.wait_for(started, tmp_path)


@pytest.mark.parametrize(
    ("seats", "backend"),
    [
        ([Seat("a", "gpu 0", True), Seat("a", "gpu 1", True)], "nccl"),
        ([Seat("a", "gpu 0", True), Seat("b", "gpu 0", True)], "nccl"),
        ([Seat("a", "gpu 0", True), Seat("a", "gpu 0", True)], "gloo"),  # NCCL refuses two ranks on one GPU
        ([Seat("a", "gpu 0", True), Seat("a", "", True)], "gloo"),  # one trains on its processor
        ([Seat("a", "gpu 0", True), Seat("a", "gpu 1", False)], "gloo"),  # its torch has no NCCL
    ],
)
def test_the_backend_is_the_one_that_training_will_use(seats, backend):
    assert backend_of(seats) == backend


def on_made_up_gpus(folder, ranks, *uuid):
    command = [sys.executable, str(MADE_UP_GPUS)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen([*command, str(rank), str(ranks), str(folder), *uuid], env=environment)
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=300) for process in started] == [0] * ranks
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def test_between_gpus_nccl_is_measured_by_the_devices_events(tmp_path):
    """NCCL's calls, made to gloo: what was asked of it and in which order, and nothing about NCCL's times."""
    ranks = on_made_up_gpus(tmp_path, 3)
    rows = [row for rank in ranks for row in rank["rows"]]
    assert [row[:2] for row in rows] == [[0, 1], [0, 2], [1, 2]]
    sizes, trips = 3, transfers.WARM_UP + transfers.REPEATS
    for rank in ranks:
        assert rank["seen"]["groups"] == [
            [[a, b], "nccl", TRANSFER_CTAS] for a, b in combinations(range(3), 2) for _ in ("to", "back")
        ]
        assert rank["seen"]["events"] == 2 * sizes * (trips + 1)  # of two pairs
        assert rank["seen"]["waits"] == 2 * sizes  # once for all trips of a size
    costs = transfers.fitted(rows)
    assert len(costs) == 6 and {cost.backend for cost in costs} == {"nccl"}
    assert all(cost.latency > 0 or cost.bytes_per_second > 0 for cost in costs)


def test_ranks_that_share_a_gpu_are_measured_over_gloo(tmp_path):
    ranks = on_made_up_gpus(tmp_path, 2, "the same")
    assert [row[3] for row in ranks[0]["rows"]] == ["gloo"]
    assert all(rank["seen"]["groups"] == [] for rank in ranks)


def test_a_profile_outlives_transfers_that_cannot_be_measured(tmp_path, monkeypatch, capfd):
    torch.jit.script(nn.Sequential(nn.Linear(8, 8))).save(tmp_path / "net.pt")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    output = tmp_path / "profile.json"
    options = ["--input", "4x8", "--repeats", "1", "--warm-up", "0", "-o", str(output)]
    assert main([str(tmp_path / "net.pt"), *options]) == 7
    said = capfd.readouterr().err
    assert "--no-transfers skips this" in said and f"{output} was written without transfers" in said
    written = json.loads(output.read_text())
    assert len(written["layers"]) == 1 and written["transfers"] == []


def test_one_gpu_shows_no_transfers(monkeypatch):
    """Two processes on it would use gloo, and the training NCCL."""
    gpu = SimpleNamespace(place=torch.device("cuda", 0))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert transfers.measure_transfers(2, gpu) == []
    assert "this machine shows 1 GPU for 2 ranks; start under torchrun" in transfers.too_few_gpus(2, gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert not transfers.too_few_gpus(2, gpu) and not transfers.too_few_gpus(2, Cpu())
