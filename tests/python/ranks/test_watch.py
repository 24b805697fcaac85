# SPDX-License-Identifier: Apache-2.0
"""The thread that says where a rank is ends before its process does, and asks no store that has gone."""

import os
import subprocess
import sys
import threading
import time

import pytest
from ostinato.ranks import presence, threads, watch
from ostinato.ranks.deadline import Deadline
from ostinato.ranks.lateness import Lateness
from ostinato.ranks.presence import Presence
from ostinato.ranks.watch import Watch
from support.worlds import free_port


class Store:
    """As torch's, in this process. `held`: check() and set() wait until it is let go."""

    def __init__(self):
        self.values: dict[str, str] = {}
        self.lock, self.asked, self.free = threading.Lock(), threading.Event(), threading.Event()
        self.free.set()

    def clone(self) -> "Store":
        return self

    def _wait(self) -> None:
        self.asked.set()
        self.free.wait()

    def check(self, keys: list[str]) -> bool:
        self._wait()
        return all(key in self.values for key in keys)

    def set(self, key: str, value: str) -> None:
        self._wait()
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def add(self, key: str, amount: int) -> int:
        self._wait()
        with self.lock:
            self.values[key] = str(int(self.values.get(key, "0")) + amount)
            return int(self.values[key])


@pytest.fixture
def store():
    made = Store()
    yield made
    made.free.set()
    for mine in list(watch._watches):
        mine.close()
    threads.join(60)


def watched(store: Store, rank: int) -> Watch:
    return Watch(store, "test", rank, 2, lambda: "here", period_s=0.01)


def test_a_process_waits_for_its_threads(store):
    """One that comes back from the store later would abort the interpreter."""
    store.free.clear()
    mine = watched(store, 1)
    assert store.asked.wait(60)
    end = threading.Thread(target=watch._end)
    end.start()
    end.join(0.1)
    assert end.is_alive() and mine._thread.is_alive()
    store.free.set()
    end.join(60)
    assert not end.is_alive() and not mine._thread.is_alive()


def test_giving_up_waits_for_no_store_that_does_not_answer(store, capsys):
    mine = watched(store, 1)
    store.free.clear()
    mine.give_up("rank 1 waited too long")
    assert not store.free.is_set() and "rank 1 waited too long" in capsys.readouterr().err


@pytest.mark.parametrize("gone", [True, False])
def test_a_rank_whose_peers_went_with_the_launcher_says_so(store, monkeypatch, capsys, gone):
    """It may miss them before its thread looks."""
    mine = watched(store, 1)
    monkeypatch.setattr(mine._launcher, "gone", lambda: False)
    mine.close()
    mine._thread.join(60)
    monkeypatch.setattr(mine._launcher, "gone", lambda: gone)
    mine.give_up("rank 1 waits for rank 0: connection closed")
    assert ("the launcher is gone" in capsys.readouterr().err) == gone


@pytest.mark.parametrize("holder", [True, False])
def test_the_process_with_the_store_leaves_last(store, monkeypatch, capsys, holder):
    """It tells the others, who stop asking; one that ends before it says so."""
    monkeypatch.setenv("RANK", "0" if holder else "1")
    other, mine = watched(store, 1), watched(store, 0)
    if holder:
        mine.close()
        mine._thread.join(60)
        mine.leave(1)
        other._thread.join(60)
        assert not other._thread.is_alive() and not other.may_leave()
    else:
        other.leave(1)
    assert store.values[watch._LEFT] == "1" and not capsys.readouterr().err
    other.close(), mine.close()


def test_who_says_nothing_is_named(store, capsys):
    """Rank 1 is asked, and does not answer; nor is there a rank 2."""
    held = threading.Event()
    mine = Watch(store, "test", 0, 3, lambda: "here", period_s=0.01)
    other = Watch(store, "test", 1, 3, lambda: str(held.wait()), period_s=0.01)
    mine.give_up("rank 0 waited too long")
    said = capsys.readouterr().err.splitlines()
    held.set()
    other.close()
    assert said[0] == "ostinato: rank 0 waited too long" and said[1].startswith("ostinato: ranks 1, 2 said nothing")


def test_a_late_peer_is_named_once_a_wait():
    words = ["rank 0 is in step 1, between steps"]
    lateness = Lateness(lambda: words[0], after_s=2.0)

    def waiting(step: int, ms: int) -> str:
        words[0] = f"rank 0 is in step {step} at instruction 3 of 8 (2F0), waiting {ms} ms for 2RECV_F0 (1SEND_F0 of rank 1)"
        return words[0]

    assert lateness.news() == ""
    waiting(1, 1999)
    assert lateness.news() == ""
    first = waiting(1, 2000)
    assert lateness.news() == first
    waiting(1, 3000)
    assert lateness.news() == ""
    second = waiting(2, 2500)
    assert lateness.news() == second


def test_a_watch_says_it(store, capsys):
    mine = Watch(store, "test", 0, 2, lambda: "rank 0 is here, waiting 2000 ms for rank 1", 0.01, late_s=2.0)
    store.asked.wait(60)  # which comes after
    mine.close()
    assert "ostinato: rank 0 is here, waiting 2000 ms for rank 1: late, but the run goes on" in capsys.readouterr().err.splitlines()


class Expiry:
    def __init__(self, limit_s: float):
        self.came, self.what = threading.Event(), ""
        self.deadline = Deadline(limit_s, self.expired)

    def expired(self, what: str) -> None:
        self.what = what
        self.came.set()


def test_what_takes_too_long_is_told_of_while_it_lasts():
    expiry = Expiry(0.05)
    with expiry.deadline.during("the step"), expiry.deadline.during("a part of it"):
        assert expiry.came.wait(60)
    assert expiry.what == "the step takes longer than 0.05 s" and expiry.deadline.what == ""


def test_a_deadline_begins_anew_with_each_call():
    """Many calls take longer together than one may; and nothing is told when nothing is under way."""
    expiry, end = Expiry(1.0), time.monotonic() + 1.5
    while time.monotonic() < end:
        with expiry.deadline.during("the step"):
            pass
    expiry.deadline.close()
    expiry.deadline.thread.join(60)
    assert not expiry.deadline.thread.is_alive() and not expiry.came.is_set()


class Missed:
    def __init__(self):
        self.came, self.who = threading.Event(), ""

    def __call__(self, who: str) -> None:
        self.who = who
        self.came.set()


def test_who_answers_is_waited_for(store, monkeypatch):
    """However long it takes; rank 1 answers, and then it does not."""
    monkeypatch.setattr(presence, "LEAST_S", 1.0)
    mine, missed = Presence(store, "test", 0, 2, period_s=0.01), Missed()
    watches = [Watch(store, "test", r, 2, lambda: "here", 0.01, Presence(store, "test", r, 2, 0.01)) for r in range(2)]
    with mine.needed(1.0, missed):
        assert not missed.came.wait(1.5)
        watches[1].close()
        assert missed.came.wait(60) and missed.who == "rank 1 gave no sign for 1 s"


def test_a_store_that_does_not_answer_is_told_of(store, monkeypatch):
    monkeypatch.setattr(presence, "LEAST_S", 0.1)
    mine, missed = Presence(store, "test", 0, 2, period_s=0.01), Missed()
    store.free.clear()
    with mine.needed(0.1, missed):
        assert missed.came.wait(60) and "the store does not answer" in missed.who


def test_a_launcher_that_is_gone_is_noticed():
    """A rank's parent ends once the rank has seen it."""
    rank = "import time; from ostinato.ranks.launcher import Launcher; mine = Launcher(); print(mine.gone(), flush=True)"
    rank += "\nwhile not mine.gone(): time.sleep(0.01)\nprint('gone', flush=True)"
    launcher = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", launcher, rank], env=os.environ | {"CROSS_RANK": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "False\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "gone\n"


ENDS_WHILE_THE_STORE_IS_SLOW = """
import os, signal, subprocess, sys, time
from datetime import timedelta
import torch.distributed as dist
from ostinato.ranks.watch import Watch

server = os.fork()
if server == 0:
    held = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    time.sleep(120)
    os._exit(0)
watch = Watch(dist.TCPStore("127.0.0.1", int(sys.argv[1]), timeout=timedelta(seconds=60)), "x", 0, 2, lambda: "here", 0.05)
os.kill(server, signal.SIGSTOP)
os.waitid(os.P_PID, server, os.WSTOPPED)
subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {server}; sleep 5; kill -9 {server}"], stdout=subprocess.DEVNULL)

class Slow:  # stands for torch's teardown, which takes seconds on a busy host
    def __del__(self, sleep=time.sleep):
        sleep(2)

keep = Slow()
"""


def test_a_clean_exit_stays_clean_while_the_store_is_slow():
    """The thread of the watch comes back from the store when the interpreter is being taken down."""
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_THE_STORE_IS_SLOW, str(free_port())], timeout=300)
    assert ended.returncode == 0
