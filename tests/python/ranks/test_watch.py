# SPDX-License-Identifier: Apache-2.0
"""The thread that says where a rank is ends before its process does, and asks no store that has gone."""

import os
import subprocess
import sys
import threading
import time

import pytest
from ostinato.errors import Error
from ostinato.ranks import presence, threads, watch
from ostinato.ranks.deadline import Deadline
from ostinato.ranks.position import Position
from ostinato.ranks.presence import Presence, Vigil
from ostinato.ranks.watch import Watch
from support.worlds import free_port


class Store:
    """As torch's, in this process. `held`: check() and set() wait until it is let go."""

    def __init__(self):
        self.values: dict[str, str] = {}
        self.checks = 0
        self.asked, self.free = threading.Event(), threading.Event()
        self.free.set()

    def clone(self) -> "Store":
        return self

    def _wait(self) -> None:
        self.asked.set()
        self.free.wait()

    def check(self, keys: list[str]) -> bool:
        self._wait()
        self.checks += 1
        return all(key in self.values for key in keys)

    def set(self, key: str, value: str) -> None:
        self._wait()
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self._wait()
        assert expected == ""
        return self.values.setdefault(key, value).encode()


@pytest.fixture
def store():
    made = Store()
    yield made
    made.free.set()
    for mine in list(watch._watches):
        mine.close()
    threads.join(60)


def watched(store: Store, rank: int) -> Watch:
    return Watch(store, "test", rank, 2, lambda: Position("here"), period_s=0.01)


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
def test_the_process_with_the_store_leaves_last(store, capsys, holder):
    """It tells the others, who stop asking; one that ends before it says so."""
    other, mine = watched(store, 1), watched(store, 0)
    if holder:
        mine.close()
        mine._thread.join(60)
        mine.leave()
        other._thread.join(60)
        assert not other._thread.is_alive() and not other.may_leave()
    else:
        other.leave()
    assert f"{watch._LEFT}/1" in store.values and not capsys.readouterr().err
    other.close(), mine.close()


def test_of_several_engines_each_process_leaves_once(store):
    """Rank 1 has two, and rank 2 has not heard of it: the store stays for it."""
    holder = Watch(store, "engine 0", 0, 3, lambda: Position("here"), period_s=60)
    holder.close()
    leaving = threading.Thread(target=holder.leave, daemon=True)
    leaving.start()
    for engine in range(2):
        Watch(store, f"engine {engine}", 1, 3, lambda: Position("here"), period_s=0.01)._thread.join(60)
    assert f"{watch._LEFT}/1" in store.values and leaving.is_alive()
    store.set(f"{watch._LEFT}/2", "")
    leaving.join(50)
    assert not leaving.is_alive()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")]
)
def test_a_watch_that_cannot_write_goes_on(store, monkeypatch, error):
    """A log on a full disk: what it has to say is lost, and the others go on hearing from it."""

    class Full:
        def write(self, _):
            raise error

        flush = write

    monkeypatch.setattr(sys, "stderr", Full())
    presence = Presence("test", 1, 2)
    mine = Watch(
        store, "test", 1, 2, lambda: Position("rank 1 is here", "rank 0", 9000), 0.01, presence, late_s=2.0
    )
    store.values["ostinato/presence/test/1"] = ""
    end = time.monotonic() + 60
    while "ostinato/presence/test/1/1" not in store.values and time.monotonic() < end:
        time.sleep(0.01)
    assert "ostinato/presence/test/1/1" in store.values and mine._thread.is_alive()
    mine.give_up("rank 1 waited too long")


def test_who_says_nothing_is_named(store, capsys):
    """Rank 1 is asked, and does not answer; nor is there a rank 2."""
    held = threading.Event()
    mine = Watch(store, "test", 0, 3, lambda: Position("here"), period_s=0.01)

    def position() -> Position:
        held.wait()
        return Position("rank 1 is here")

    other = Watch(store, "test", 1, 3, position, period_s=0.01)
    mine.give_up("rank 0 waited too long")
    said = capsys.readouterr().err.splitlines()
    held.set()
    assert said[0] == "ostinato: rank 0 waited too long" and said[1].startswith(
        "ostinato: ranks 1, 2 did not answer"
    )
    assert "ostinato: rank 0 gave up; rank 1 is here. It said: rank 0 waited too long" in wait_for_lines(
        capsys, 1
    )
    other.close()


def of_three(store: Store, rank: int) -> Watch:
    return Watch(store, "test", rank, 3, lambda: Position(f"rank {rank} is here"), 0.01)


def test_the_first_that_fails_is_the_cause(store, capsys):
    """Rank 2 misses rank 1, which misses rank 0, which says what happened to it."""
    of_three(store, 0).tell_of(ValueError("out of luck\nand more of it"))
    assert capsys.readouterr().err == ""  # its traceback says it
    of_three(store, 1).give_up("rank 1: no answer from rank 0", aloud=False)
    of_three(store, 2).give_up("rank 2: no answer from rank 1")
    said = capsys.readouterr().err.splitlines()
    assert "ostinato: rank 2: no answer from rank 1" in said
    causes = [
        line
        for line in said
        if line.endswith("said: rank 0 failed with ValueError: out of luck; rank 0 is here")
    ]
    assert len(causes) == 2, said  # by each of the two, whether its thread hears it or asks


def test_who_waits_hears_why_another_fails(store, capsys):
    error = ValueError("out of luck")
    error.add_note("ostinato: rank 2 is in step 1 at instruction 3")
    waits = Watch(store, "test", 0, 3, lambda: Position("rank 0 is here"), 0.01)
    of_three(store, 2).tell_of(error)
    said = wait_for_lines(capsys, 2)
    assert said == [
        "ostinato: rank 2 gave up; rank 0 is here. It said: rank 2 failed with ValueError: out of luck; rank 2 is in step 1 at instruction 3",
        "ostinato: rank 1 did not answer: stopped, gone, or holding the GIL",
    ]
    waits.give_up("rank 0: no answer from rank 1")
    assert "gave up first" not in capsys.readouterr().err  # it is said already


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_error_that_has_no_words_is_told_by_its_kind(store, capsys):
    waits = Watch(store, "test", 0, 3, lambda: Position("rank 0 is here"), 0.01)
    of_three(store, 2).tell_of(Silent())
    assert wait_for_lines(capsys, 1)[0].endswith("It said: rank 2 failed with Silent; rank 2 is here")
    waits.close()


def wait_for_lines(capsys, count: int) -> list[str]:
    said, end = "", time.monotonic() + 60
    while said.count("\n") < count and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said.splitlines()


def test_who_is_silent_is_named_also_where_the_store_goes(store, capsys):
    """Rank 0 has it, and ends when it has waited for the others; rank 1, which it heard, has not failed by
    then."""
    of_three(store, 0).give_up("rank 0: no answer from rank 2", aloud=False)
    mine = of_three(store, 1)
    mine.close()
    mine._thread.join(60)
    assert mine._look() and mine._look()
    capsys.readouterr()

    def gone(_):
        raise RuntimeError("Connection reset by peer")

    store.check = gone
    assert mine._look()
    assert capsys.readouterr().err.splitlines() == [
        "ostinato: the store of the process group is gone; rank 1 is here",
        "ostinato: rank 2 did not answer: stopped, gone, or holding the GIL",
    ]


def test_a_rank_without_memory_for_a_thread_tells_the_others(store, monkeypatch):
    mine = of_three(store, 1)

    def none(_):
        raise AssertionError("Python waits for ever for a thread that begins without memory")

    monkeypatch.setattr(threads, "start", none)
    mine.tell_of(MemoryError())
    assert (
        store.values["ostinato/watch/test/failed"]
        == '["rank 1", "rank 1 failed with MemoryError; rank 1 is here"]'
    )


@pytest.mark.parametrize("kind", [ValueError, Error])
@pytest.mark.parametrize("all_fail", [True, False])
def test_a_process_that_ends_with_an_error_tells_the_others(store, monkeypatch, kind, all_fail):
    """Unless it is ostinato's, and all have one."""
    mine = watched(store, 0)
    if all_fail:
        store.values["ostinato/watch/test/failed/1"] = ""
    monkeypatch.setattr(sys, "last_value", kind("out of luck"), raising=False)
    watch._end()
    told = store.values.get("ostinato/watch/test/failed")
    alone = f'["rank 0", "rank 0 ended with {kind.__name__}: out of luck; here"]'
    assert told == (None if all_fail and kind is Error else alone)
    assert not mine._thread.is_alive()


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (RuntimeError("[/third_party/gloo/x] Connection closed by peer"), True),
        (RuntimeError("no luck"), False),
    ],
)
def test_who_ends_with_a_collective_that_failed_names_the_silent(store, monkeypatch, capsys, error, names):
    """The script's own barrier, or an exchange before a step."""
    Watch(store, "test", 0, 2, lambda: Position("here"), 0.01)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    watch._end()
    assert ("rank 1 did not answer" in capsys.readouterr().err) == names


def test_a_watch_says_it(store, capsys):
    mine = Watch(store, "test", 0, 2, lambda: Position("rank 0 is here", "rank 1", 2000), 0.01, late_s=2.0)
    store.asked.wait(60)  # which comes after
    mine.close()
    assert (
        "ostinato: rank 0 is here, waiting 2000 ms for rank 1: late, but the run goes on"
        in capsys.readouterr().err.splitlines()
    )


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
    stalled = 0.0  # a call in which the machine did
    while time.monotonic() < end:
        began = time.monotonic()
        with expiry.deadline.during("the step"):
            pass
        stalled = max(stalled, time.monotonic() - began)
    expiry.deadline.close()
    expiry.deadline.thread.join(60)
    assert not expiry.deadline.thread.is_alive() and (stalled > 0.5 or not expiry.came.is_set())


class Missed:
    def __init__(self):
        self.came, self.who = threading.Event(), ""

    def __call__(self, who: str) -> None:
        self.who = who
        self.came.set()


def test_who_answers_is_waited_for(store, monkeypatch):
    """However long it takes; rank 1 answers, and then it does not."""
    monkeypatch.setattr(presence, "LEAST_S", 1.0)
    missed = Missed()
    watches = [
        Watch(store, "test", r, 2, lambda: Position("here"), 0.01, Presence("test", r, 2)) for r in range(2)
    ]
    with watches[0].vigil(1.0, missed).during("waiting"):
        assert not missed.came.wait(2.5)
        watches[1].close()
        assert missed.came.wait(60) and missed.who == "rank 1 gave no sign of life for 1 s"


def test_who_has_answered_is_not_asked_for_again(store):
    """Of 63 ranks 62 answer at once, and the last when it was asked for a while."""
    answers = {f"key/{rank}" for rank in range(62)}
    store.values.update(dict.fromkeys(answers, ""))
    silent = presence.silent(store, "key", list(range(63)))
    assert silent == [62] and store.checks == 64
    for _ in range(10):
        assert (silent := presence.silent(store, "key", silent)) == [62]
    assert store.checks == 64 + 20
    store.values["key/62"] = ""
    assert presence.silent(store, "key", silent) == [] == presence.silent(store, "key", list(range(63)))
    assert store.checks == 84 + 2


def test_a_vigil_asks_little_of_a_store(store, monkeypatch):
    """Nothing in the first half of its limit; then, of 64 ranks that answer in time, each question takes few
    requests."""
    monkeypatch.setattr(presence, "LEAST_S", 0.1)
    original = store.set
    questions = 0

    def answered(key: str, value: str) -> None:
        nonlocal questions
        questions += 1
        for rank in range(1, 64):
            original(f"{key}/{rank}", "")
        original(key, value)

    monkeypatch.setattr(store, "set", answered)
    vigil, end = Vigil(Presence("test", 0, 64), 60.0, 0.01, Missed()), time.monotonic() + 1.0
    with vigil.during("waiting"):
        while time.monotonic() < end:
            vigil.look(store)
    assert questions == store.checks == 0
    vigil.deadline.close()
    vigil = Vigil(Presence("test", 0, 64), 0.1, 0.01, Missed())
    with vigil.during("waiting"):
        while questions < 5:
            vigil.look(store)
    vigil.deadline.close()
    assert store.checks == questions


def test_a_vigil_begins_anew_with_each_call(store, monkeypatch):
    """What was asked in one call is no answer in the next."""
    monkeypatch.setattr(presence, "LEAST_S", 60.0)
    vigil = Vigil(Presence("test", 0, 2), 0.1, 0.01, Missed())
    for question in (1, 2):
        with vigil.during("waiting"):
            while f"ostinato/presence/test/{question}" not in store.values:
                vigil.look(store)
        vigil.look(store)
        vigil._presence.answer(store)
    vigil.deadline.close()


def test_a_store_that_does_not_answer_is_told_of(store, monkeypatch):
    monkeypatch.setattr(presence, "LEAST_S", 0.1)
    missed = Missed()
    mine = Watch(store, "test", 0, 2, lambda: Position("here"), 0.01, Presence("test", 0, 2))
    store.free.clear()
    with mine.vigil(0.1, missed).during("waiting"):
        assert missed.came.wait(60) and "the store does not answer" in missed.who


def test_a_launcher_that_is_gone_is_noticed():
    """A rank's parent ends once the rank has seen it."""
    rank = "import time; from ostinato.ranks.launcher import Launcher; mine = Launcher(); print(mine.gone(), flush=True)"
    rank += "\nwhile not mine.gone(): time.sleep(0.01)\nprint('gone', flush=True)"
    launcher = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", launcher, rank],
        env=os.environ | {"CROSS_RANK": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "False\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "gone\n"


ENDS_WHILE_THE_STORE_IS_SLOW = """
import os, signal, subprocess, sys, time
from datetime import timedelta
import torch.distributed as dist
from ostinato.ranks.position import Position
from ostinato.ranks.watch import Watch

server = os.fork()
if server == 0:
    held = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    time.sleep(120)
    os._exit(0)
watch = Watch(dist.TCPStore("127.0.0.1", int(sys.argv[1]), timeout=timedelta(seconds=60)), "x", 0, 2, lambda: Position("here"), 0.05)
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
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_THE_STORE_IS_SLOW, str(free_port())], timeout=300
    )
    assert ended.returncode == 0


FORKS = """
import os, sys, time
import torch.distributed as dist
from ostinato.ranks import watch
from ostinato.ranks.connection import connected
from ostinato.ranks.position import Position

dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=0, world_size=1)
store = dist.distributed_c10d._get_default_store()
mine = watch.Watch(store, "x", 0, 2, lambda: Position("here"), 0.05)
other = connected(store)
child = os.fork()
if child == 0:
    assert connected(store) is not other
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print("leaving" if other.check([watch._LEAVING]) else "stays", "alive" if mine._thread.is_alive() else "dead")
"""


def test_a_process_that_is_forked_says_nothing_for_its_parent():
    """A worker of a data loader that ends is no rank that leaves."""
    ended = subprocess.run(
        [sys.executable, "-c", FORKS, str(free_port())], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout) == (0, "stays alive\n"), ended.stderr


ENDS_ITS_GROUPS = """
import sys
import torch.distributed as dist
from ostinato.ranks import watch
from ostinato.ranks.connection import connected
from ostinato.ranks.position import Position

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=2)
store = dist.distributed_c10d._get_default_store()
connected(store)
mine = watch.Watch(store, "x", rank, 2, lambda: Position("here"), 0.5)
dist.barrier()
dist.destroy_process_group()
if rank == 1:
    sys.stdin.readline()
    mine._thread.join(60)  # it has seen that rank 0 is gone, one way or the other
    mine.close()
"""


def test_who_ends_the_groups_before_the_process_ends_as_quietly():
    """Rank 0 has the store, and rank 1 takes longer to end."""
    command, pipe = [sys.executable, "-c", ENDS_ITS_GROUPS, str(free_port())], subprocess.PIPE
    ranks = [subprocess.Popen([*command, str(r)], stdin=pipe, stderr=pipe, text=True) for r in range(2)]
    said = [rank.communicate("\n", timeout=300)[1] for rank in ranks]  # rank 1 is told when rank 0 has ended
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert not any("ostinato" in text for text in said), said


def test_what_two_threads_say_at_once_are_two_lines(tmp_path):
    """The thread of a watch, and the one that trains."""
    path = tmp_path / "said.txt"
    code = """
import threading
from ostinato.ranks.watch import say
together = threading.Barrier(2)

def run(rank):
    for _ in range(20_000):
        together.wait()
        say(f"rank {rank} waited")

threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    with path.open("w") as said:
        subprocess.run([sys.executable, "-c", code], stderr=said, check=True, timeout=300)
    lines = path.read_text().splitlines()
    assert sorted(lines) == ["ostinato: rank 0 waited"] * 20_000 + ["ostinato: rank 1 waited"] * 20_000
