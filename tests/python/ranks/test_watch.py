# SPDX-License-Identifier: Apache-2.0
"""The thread that says where a rank is ends before its process does, and asks no store that has gone."""

import threading

import pytest
from ostinato.ranks import watch
from ostinato.ranks.watch import Watch


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
