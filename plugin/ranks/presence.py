# SPDX-License-Identifier: Apache-2.0
"""Who is still there, while this rank waits for what may rightly take long: a start, a checkpoint.

    presence = Presence(store, "engine 0", rank, ranks, period_s=1.0)
    watch = Watch(..., presence=presence)        # its thread answers the others
    with presence.needed(300.0, lost):           # lost("rank 2 has given no sign for 300 s")
        engine.save_checkpoint(folder)

A rank asks the store every two periods, and the watches of the others answer. So a rank that writes for an hour is waited for, and one that
is stopped is not. A rank that keeps Python's lock cannot answer: it has the whole limit for its next sign.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import threads
from .connection import connected
from .deadline import Deadline

LEAST_S = 30.0  # of patience: a rank may wait so long for a processor, or for Python's lock
NO_STORE = "the store does not answer: the process that holds it, rank 0 or the launcher's agent, is stopped or gone"


class Presence:
    """`name`: the same on all `ranks` ranks, and of them alone. `position`: what this rank answers, in words."""

    def __init__(self, store, name: str, rank: int, ranks: int, period_s: float, position: Callable[[], str] = lambda: ""):
        self._store, self._position = store, position
        self._key, self._rank, self._period_s = f"ostinato/presence/{name}", rank, period_s
        self._others = [other for other in range(ranks) if other != rank]
        self._answered = 0  # the number of the last question
        self._silent, self._heard = self._others, time.monotonic()  # since the last question; when the store answered

    def answer(self, store) -> None:
        """To be called once a period, by one thread, with its connection. Raises RuntimeError where the store is gone."""
        while store.check([f"{self._key}/{self._answered + 1}"]):
            self._answered += 1
            store.set(f"{self._key}/{self._answered}/{self._rank}", self._position())

    def ask(self, store) -> int:
        """All ranks once; the number of the question."""
        number = self._answered + 1
        store.set(f"{self._key}/{number}", "")
        return number

    def answers(self, store, number: int) -> dict[int, str | None]:
        """Of the other ranks so far."""
        keys = {rank: f"{self._key}/{number}/{rank}" for rank in self._others}
        return {rank: store.get(key).decode() if store.check([key]) else None for rank, key in keys.items()}

    @contextmanager
    def needed(self, limit_s: float, lost: Callable[[str], None]) -> Iterator[None]:
        """lost(who) is called, on another thread, once a rank or the store has given no sign for `limit_s`, or LEAST_S."""
        limit_s = max(limit_s, LEAST_S)
        self._silent, self._heard = self._others, time.monotonic()
        over = threading.Event()
        deadline = Deadline(limit_s, lambda _: lost(self._missed(limit_s)))
        threads.keep(deadline.thread)
        try:
            with deadline.during("waiting"):
                threads.start(lambda: self._ask(over, deadline))
                yield
        finally:
            over.set()
            deadline.close()

    def _ask(self, over: threading.Event, deadline: Deadline) -> None:
        """A question after the other, each until all have answered."""
        number = self._answered
        try:
            while not over.wait(self._period_s):
                store = connected(self._store)
                if self._silent is self._others:
                    number = max(number, self._answered) + 1
                    store.set(f"{self._key}/{number}", "")
                self._silent = silent(store, f"{self._key}/{number}", self._silent)
                self._heard = time.monotonic()
                if not self._silent:
                    self._silent = self._others
                    deadline.renew()
        except RuntimeError:
            pass  # the store is gone

    def _missed(self, limit_s: float) -> str:
        if time.monotonic() - self._heard > min(limit_s, 5 * self._period_s) or not self._silent:
            return NO_STORE
        return f"{ranks_in_words(self._silent)} gave no sign for {limit_s:g} s"


def silent(store, key: str, ranks: list[int]) -> list[int]:
    """Those that have not set `key`/rank. All of them at once first: every rank asks so in every period, of every other, and there is one
    store for all.
    """
    return [] if store.check([f"{key}/{rank}" for rank in ranks]) else [rank for rank in ranks if not store.check([f"{key}/{rank}"])]


def ranks_in_words(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
