# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait in torch's start name who has not come; torch itself goes on as without."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist
from ostinato.ranks import arrivals
from support import worlds
from support.fault_jobs import said_by, wait_for


def come(rank: int, ranks: int, port: int, folder, patience_s: float) -> None:
    os.environ.update(worlds.environment(rank, ranks, port))
    os.dup2(os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    arrivals.PATIENCE_S, arrivals.PERIOD_S = patience_s, 0.05
    arrivals.name_absent()
    dist.init_process_group("gloo")
    dist.barrier()


def started(folder, port: int, rank: int, ranks: int, patience_s: float = worlds.TIMEOUT):
    process = worlds.forked().Process(target=come, args=(rank, ranks, port, folder, patience_s))
    process.start()
    return process


def lines(folder, rank: int) -> list[str]:
    return [line for line in said_by(folder, rank).splitlines() if line.startswith("ostinato: ")]


@pytest.mark.parametrize(
    ("first", "ranks", "speaks", "words"),
    [
        ([0], 2, 0, "rank 1 has not called it"),
        ([0, 1], 4, 0, "ranks 2, 3 have not called it"),
        ([1], 2, None, "nothing answers at 127.0.0.1:"),
    ],
    ids=["the one with the store waits", "some are there", "nobody has the store"],
)
def test_who_has_not_come_is_named(tmp_path, first, ranks, speaks, words):
    """The last come when it has been said, and then all begin."""
    port = worlds.free_port()
    processes = [started(tmp_path, port, rank, ranks, 1.0) for rank in first]
    try:
        who = first[0] if speaks is None else speaks
        if speaks is None:  # of each machine the first speaks, and this is not it
            assert not wait_for(lambda: bool(lines(tmp_path, who)), 5)
        else:
            assert wait_for(lambda: any(words in line for line in lines(tmp_path, who))), said_by(
                tmp_path, who
            )
        processes += [started(tmp_path, port, rank, ranks) for rank in range(ranks) if rank not in first]
        for process in processes:
            process.join(worlds.TIMEOUT)
        assert [process.exitcode for process in processes] == [0] * ranks
        quiet = [
            rank for rank in range(ranks) if rank != speaks and (speaks is not None or rank not in first)
        ]
        assert not any(lines(tmp_path, rank) for rank in quiet), "one speaks"
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_nobody_answers_where_the_store_should_be(monkeypatch, capsys):
    monkeypatch.setattr(arrivals, "PATIENCE_S", 0.0)
    monkeypatch.setattr(arrivals, "PERIOD_S", 0.01)
    monkeypatch.setenv("LOCAL_RANK", "0")
    port, said = worlds.free_port(), ""
    here = arrivals.Arrivals(1, 2, "127.0.0.1", port)

    def has_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "ostinato: rank 1 has waited 0 s" in said

    assert wait_for(has_said)
    here.close()
    assert (
        f"init_process_group(): nothing answers at 127.0.0.1:{port}, where rank 0 should hold the store"
        in said
    )


def test_who_holds_the_store_is_there(monkeypatch):
    """Rank 0 may not have written it down yet; the launcher's agent is no rank."""
    here, store = object.__new__(arrivals.Arrivals), dist.HashStore()
    here._rank, here._ranks = 1, 3
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store.set(here._key(1), "")
    assert here._absent(store) == arrivals.Absent("rank 2 has not called it", lowest=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert here._absent(store) == arrivals.Absent("ranks 0, 2 have not called it", lowest=True)


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({}, True),
        ({"init_method": "env://"}, True),
        ({"init_method": "tcp://other:1", "rank": 0, "world_size": 2}, False),
        ({"wrong": 1}, False),
    ],
)
def test_other_meeting_places_are_left_alone(monkeypatch, given, counts):
    for name, value in worlds.environment(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    assert arrivals._of_environment(dist.init_process_group, ("gloo",), given) == counts
    assert not arrivals._of_environment(
        dist.init_process_group, ("gloo",), {"store": dist.HashStore(), "rank": 0, "world_size": 2}
    )


SCRIPT = "import deepspeed, torch.distributed as dist; print('wrapped' if hasattr(dist.init_process_group, 'of_ostinato') else 'as it was')"


@pytest.mark.parametrize(
    ("words", "says"), [(["-m", "ostinato.run"], "wrapped"), ([], "as it was")], ids=["run", "autoload"]
)
def test_only_scripts_that_are_started_with_ostinato(tmp_path, words, says):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT if words else f"import ostinato.deepspeed; {SCRIPT}")
    ended = subprocess.run(
        [sys.executable, *words, str(script)],
        env=worlds.without_launcher(),
        capture_output=True,
        text=True,
        timeout=worlds.TIMEOUT,
    )
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == says, ended.stderr
