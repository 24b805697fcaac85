# SPDX-License-Identifier: Apache-2.0
"""Which ranks are still there, while this rank waits for something that may take long: a start, a step, a
checkpoint.

    presence = Presence("engine 0", rank, ranks)
    watch = Watch(..., presence=presence)        # its thread asks other ranks, and answers them
    vigil = watch.vigil(300.0, lost)             # lost("rank 2 gave no sign for 150 s")
    with vigil.during("saving a checkpoint"):
        engine.save_checkpoint(folder)

Once a call has lasted half the limit, this rank asks all other ranks for a sign of life; when all have given
one, the limit starts again. So ranks wait for a rank that writes for an hour, but not for one that is stopped.
A rank that holds Python's lock cannot answer: it has the other half of the limit to do so. A shorter call asks
no rank.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from .deadline import Deadline
from .position import Position

LEAST_S = 30.0  # least patience: a rank may wait that long for a CPU, or for Python's lock
NO_STORE = "the store does not answer: its process (rank 0, or the launcher's agent) is stopped or gone"


class Presence:
    """`name`: the same on all `ranks` ranks, and used by no other. `position`: what this rank answers."""

    def __init__(
        self, name: str, rank: int, ranks: int, position: Callable[[], Position] = lambda: Position("")
    ):
        self._position = position
        self._key, self._rank = f"ostinato/presence/{name}", rank
        self.others = [other for other in range(ranks) if other != rank]
        self._answered = 0  # the number of the last question

    def answer(self, store) -> None:
        """To be called once per period, by one thread, with its connection. Raises RuntimeError where the store
        is gone."""
        while store.check([f"{self._key}/{self._answered + 1}"]):
            self._answered += 1
            store.set(f"{self._key}/{self._answered}/{self._rank}", self._position().to_text())

    def ask(self, store) -> int:
        """Asks all ranks once; returns the number of the question."""
        number = self._answered + 1
        store.set(f"{self._key}/{number}", "")
        return number

    def answers(self, store, number: int) -> dict[int, Position | None]:
        """The answers of the other ranks so far."""
        keys = {rank: f"{self._key}/{number}/{rank}" for rank in self.others}
        return {
            rank: Position.from_text(store.get(key).decode()) if store.check([key]) else None
            for rank, key in keys.items()
        }

    def silent(self, store, number: int, ranks: list[int]) -> list[int]:
        """The ranks that have not answered question `number`."""
        return silent(store, f"{self._key}/{number}", ranks)


class Vigil:
    """Watches calls that may take any time while all ranks, and the store, give signs of life. Calls
    lost(who), on a separate thread, where one has given none for half of `limit_s`, or LEAST_S if that is
    longer.
    """

    def __init__(self, presence: Presence, limit_s: float, period_s: float, lost: Callable[[str], None]):
        self._presence, self._period_s, self._lost = presence, period_s, lost
        self._patience_s = max(limit_s / 2, LEAST_S)
        self._number, self._silent = 0, presence.others  # the open question; ranks that have not answered it
        self._heard = 0.0  # when the store last answered
        self.deadline = Deadline(limit_s / 2 + self._patience_s, lambda _: self._lost(self._missed()))

    def during(self, what: str) -> AbstractContextManager:
        """Of nested calls the outermost counts."""
        return self.deadline.during(what)

    def look(self, store) -> None:
        """To be called once per period, by the thread of a watch, with its connection. Raises RuntimeError
        where the store is gone."""
        if self.deadline.left_s > self._patience_s:
            self._number = 0
            return
        if not self._number:
            self._number, self._silent = self._presence.ask(store), self._presence.others
        self._silent = self._presence.silent(store, self._number, self._silent)
        self._heard = time.monotonic()
        if not self._silent:
            self.deadline.renew()

    def _missed(self) -> str:
        if time.monotonic() - self._heard > min(self._patience_s, 5 * self._period_s) or not self._silent:
            return NO_STORE
        return f"{ranks_in_words(self._silent)} gave no sign of life for {self._patience_s:g} s"


def silent(store, key: str, ranks: list[int]) -> list[int]:
    """The ranks that have not set `key`/rank. Asks for all at once first, because every rank asks for every
    other in every period, and all share one store.
    """
    return (
        []
        if not ranks or store.check([f"{key}/{rank}" for rank in ranks])
        else [rank for rank in ranks if not store.check([f"{key}/{rank}"])]
    )


def ranks_in_words(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
