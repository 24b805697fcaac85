# SPDX-License-Identifier: Apache-2.0
"""When one rank gives up waiting, or fails, every rank says why, and where it is itself: the log then shows which
rank waits for which.

    watch = Watch(store, "step", rank, ranks, executor.position, period_s=1.0)
    try:
        executor.run()
    except StepTimeout as error:
        watch.give_up(str(error))    # prints it; returns when all ranks have spoken, or after a few periods
        raise

The first rank that gives up is the cause: later ones miss a neighbour, which in a chain of ranks need not be
the one that failed.

A thread of each rank asks the store once per period, so a rank answers while it waits in the executor, or
computes endlessly in Python. It costs a few messages per period. A rank ends when its launcher is gone.

A process that ends waits for its threads first: a thread that returns from the store to an interpreter that is
shutting down would abort it. Where no agent of the launcher holds the store, the process that holds it tells
all ranks that it leaves, and gives them a period to stop asking.
"""

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist
from ostinato.errors import Error, printable, put
from ostinato.groups import is_of_a_peer

from . import gloo_threads, threads
from .connection import connected
from .deadline import Deadline
from .elsewhere import Elsewhere
from .lateness import Lateness
from .launcher import Launcher, agent_has_the_store
from .position import Position
from .presence import NO_STORE, Presence, Vigil, ranks_in_words, silent

PATIENCE_S = 20.0  # for threads, when the process ends
PATIENCE_AFTER_FAILURE_S = 2.0  # the store may have failed
LOOKS = 5  # periods that other ranks have to speak once one gives up
LONGEST = 1000  # characters of what other ranks are told
STORE_GONE = "the store is gone, so this rank cannot ask others: its process (rank 0, or the launcher's agent) has ended"
LAUNCHER_GONE = "the launcher is gone, so this rank ends"
_LEAVING, _LEFT = "ostinato/watch/leaving", "ostinato/watch/left"
_watches: list["Watch"] = []


def late_after(timeout_s: float) -> float:
    """Seconds of waiting after which a rank says so, if it gives up after `timeout_s`."""
    return min(30.0, timeout_s / 2)


def say(text: str) -> None:
    put(f"ostinato: {text}", error=True)


def in_a_line(text: str) -> str:
    """Its first line, which has what matters: torch's errors go on with a stack."""
    return printable(text.split("\n", 1)[0])[:LONGEST]


class Watch:
    """`name`: the same on all ranks of one pipeline, and used by no other. `presence`: what its thread answers
    for this rank. `late_s`: a rank that waits that long in the executor says so, once per wait. `together`: a
    name that several pipelines share: all of them hear when a rank of one gives up. `lost`: the watch's thread
    calls it once a rank has given up and the ranks have had time to say where they are.
    """

    def __init__(
        self, store, name: str, rank: int, ranks: int, position: Callable[[], Position], period_s: float,
        presence: Presence | None = None, late_s: float = math.inf, together: str = "", lost: Callable[[str], None] = lambda why: None,
    ):  # fmt: skip
        self._store = store  # keeps the server alive, if this process has it
        self._rank, self._ranks = rank, ranks
        # Noted now, because the script may destroy the process groups before its process ends.
        self._place, self._world = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (rank, ranks)
        )
        self._who = (
            f"rank {rank}"
            if not together or rank == self._place
            else f"rank {self._place} (pipeline rank {rank})"
        )
        self._failed = f"ostinato/watch/{together or name}/failed"
        self._spoken = f"ostinato/watch/{name}/spoken"
        self._position, self._period_s = position, period_s
        self._presence, self._launcher, self._lateness = presence, Launcher(), Lateness(position, late_s)
        self._elsewhere = None if presence is None else Elsewhere(presence)
        self._late: Position | None = None  # a wait to report, once other ranks have said where they are
        self._over, self._leaves = threading.Event(), False
        self._why, self._names_silent = "", False  # why this rank gives up
        self._may_be_shared = False  # all ranks may have the same reason
        self._among = (self._place, self._world) if together else (rank, ranks)  # those that hear of it
        self._asked = threading.Event()  # its thread has asked other ranks
        self._heard, self._lost = "", lost  # which rank has given up, and why
        self._silent: list[int] = []  # ranks that had not answered since then, when last looked
        self._looks = 0  # how many are left
        self._deadlines: list[Deadline] = []  # which end with this watch
        self._vigil: Vigil | None = None
        self._reaches = True  # the store's process is there, and has not said that it leaves
        _watches.append(self)
        self._thread = threads.start(self._run)

    def limit(self, limit_s: float, expired: Callable[[str], None]) -> Deadline:
        """A time-out for calls that have no other; it ends with this watch."""
        return self._ending(Deadline(limit_s, expired))

    def vigil(self, limit_s: float, lost: Callable[[str], None]) -> Vigil:
        """For calls that may take any time while all ranks of its presence answer; it ends with this watch."""
        assert self._presence is not None
        vigil = Vigil(self._presence, limit_s, self._period_s, lost)
        self._ending(vigil.deadline)
        self._vigil = vigil
        return vigil

    def _ending(self, deadline: Deadline) -> Deadline:
        threads.keep(deadline.thread)
        self._deadlines.append(deadline)
        return deadline

    def give_up(self, why: str, aloud: bool = True) -> None:
        """Says that this rank has failed, and gives other ranks time to say where they are. Returns in bounded
        time, even if the store does not answer. Not `aloud`: a traceback says it.
        """
        if aloud:
            say(why)
        if self._launcher.gone():  # which is why peers are missing
            say(f"{LAUNCHER_GONE}; {self._position()}")
        self._tell(why, names_silent=True)

    def tell_of(self, error: BaseException, how: str = "failed") -> None:
        """give_up() for a rank that prints a traceback: tells other ranks what happened, and where (from the
        error's notes, or its position). Where a collective has failed, it also says which ranks are silent,
        because torch does not name any. An error of ostinato's it tells only if this rank has it alone: most
        come from an exchange, and all ranks have them.
        """
        self._may_be_shared = isinstance(error, Error)
        notes = [note.removeprefix("ostinato: ") for note in getattr(error, "__notes__", ())]
        where = notes or [str(self._position())]
        words = ""
        with suppress(Exception):  # the script's own kind of error may not say
            words = str(error)
        what = ": ".join(filter(None, [type(error).__name__, in_a_line(words)]))
        said = f"{self._who} {how} with {what}"
        self._tell(
            "; ".join([said, *where]), names_silent=isinstance(error, RuntimeError) and is_of_a_peer(error)
        )

    def _tell(self, why: str, names_silent: bool) -> None:
        """Tells other ranks, once: later failures on this rank follow from the first. The watch's thread does
        it: starting a new thread may hang Python if memory is what has run out.
        """
        if self._why:
            return
        self._why, self._names_silent = in_a_line(why), names_silent
        self._over.set()
        if not self._thread.is_alive():
            say(f"{STORE_GONE}; {self._position()}")
        elif not self._asked.wait(7 * self._period_s + 1.0):  # the thread asks for six periods at most
            say(NO_STORE)

    def close(self, leaves: bool = False) -> None:
        """`leaves`: the process ends normally, and the watch's thread tells other ranks, as no new thread may
        start then."""
        self._leaves = leaves
        self._over.set()
        for deadline in self._deadlines:
            deadline.close()
        with suppress(ValueError):  # already closed
            _watches.remove(self)

    def _ask(self) -> None:
        try:
            store, mine = connected(self._store), json.dumps([self._who, self._why])
            if self._may_be_shared and self._all_fail(store):
                return
            first = store.compare_set(self._failed, "", mine).decode()
            if not self._heard and first != mine:
                say("{} gave up first, and said: {}".format(*json.loads(first)))
            end = time.monotonic() + LOOKS * self._period_s
            store.set(f"{self._spoken}/{self._rank}", "")
            while self._note_silent(store) and time.monotonic() < end:
                time.sleep(self._period_s / 10)
        except RuntimeError:
            if not self._heard:
                say(f"{STORE_GONE}; {self._position()}")
        finally:
            if self._names_silent or self._heard:
                self._say_silent()
            self._asked.set()

    def _all_fail(self, store) -> bool:
        """Whether all ranks have an error of ostinato's: then none waits for this one."""
        mine, ranks = self._among
        keys = [f"{self._failed}/{rank}" for rank in range(ranks)]
        end = time.monotonic() + self._period_s
        try:
            store.set(keys[mine], "")
            while not (all_fail := store.check(keys)) and time.monotonic() < end:
                time.sleep(self._period_s / 20)
        except RuntimeError:  # the rank that has the store was the first to see that all do
            return True
        return all_fail

    def _note_silent(self, store) -> list[int]:
        """Notes which ranks have not answered since one gave up."""
        self._silent = silent(store, self._spoken, self._silent or list(range(self._ranks)))
        return self._silent

    def _say_silent(self) -> None:
        if self._silent:
            say(f"{ranks_in_words(self._silent)} did not answer: stopped, gone, or holding the GIL")
        self._silent, self._looks = [], 0

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self._end_without_launcher()
            self._late = self._lateness.news() or self._late
            if self._reaches and not self._look():
                return
            if self._late and (self._presence is None or not self._reaches):
                self._say_late([])
        if self._why:
            self._ask()
        elif self._leaves and self._reaches:
            self.leave()

    def _look(self) -> bool:
        """Reads what other ranks say in the store. False: stop asking, because the store's process leaves."""
        try:
            store = connected(self._store)
            if not self._heard and store.check([self._failed]):
                who, why = json.loads(store.get(self._failed))
                self._heard, self._looks = f"{who} gave up, and said: {why}", LOOKS
                say(f"{who} gave up; {self._position()}. It said: {why}")
                store.set(f"{self._spoken}/{self._rank}", "")
            elif self._looks:
                self._looks -= 1
                if not self._note_silent(store) or not self._looks:
                    self._say_silent()
                    self._lost(self._heard)
            if store.check([_LEAVING]):
                self._reaches = False
                self._tell_left(store)
                return False
            if self._presence is not None:
                self._presence.answer(store)
            if self._vigil is not None:
                self._vigil.look(store)
            if (
                self._late
                and self._elsewhere is not None
                and (others := self._elsewhere.found(store, self._late)) is not None
            ):
                self._say_late(others)
        except RuntimeError:  # the store may have been the launcher's
            self._reaches = False
            say(f"the store of the process group is gone; {self._position()}")
            self._say_silent()
        return True

    def _say_late(self, others: list[str]) -> None:
        """Says who is late; nothing where all ranks are in the same collective, or write the same checkpoint."""
        assert self._late is not None
        if others or not self._late.call:
            waits = f"{self._late}{self._lateness.as_long()}"
            say("; ".join([waits, *others]) + ": late, but the run goes on")
        else:
            self._lateness.unsaid()
        self._late = None

    def _end_without_launcher(self) -> None:
        if self._launcher.gone():
            say(f"{LAUNCHER_GONE}; {self._position()}")
            os._exit(1)

    def may_leave(self) -> bool:
        """Whether the watch can still say that this process ends."""
        return self._reaches and self._thread.is_alive()

    def leave(self) -> None:
        """Says that this process ends normally; the one with the store waits for other ranks to stop asking.
        Once per process."""
        try:
            store = connected(self._store)
            if self._place > 0:  # in torch's own stores rank 0 has it
                return self._tell_left(store)
            store.set(_LEAVING, "1")
            others = [f"{_LEFT}/{place}" for place in range(1, self._world)]
            end = time.monotonic() + 2 * self._period_s
            while not store.check(others) and time.monotonic() < end:
                time.sleep(self._period_s / 20)
        except RuntimeError:
            pass

    def _tell_left(self, store) -> None:
        store.set(f"{_LEFT}/{self._place}", "")


@atexit.register
def _end() -> None:
    error: BaseException | None = getattr(sys, "last_value", None)
    failed = error is not None
    if error is not None:
        for watch in list(_watches):
            watch.tell_of(error, "ended")
    tells = not failed and not agent_has_the_store()
    for watch in list(_watches):
        leaves = tells and watch.may_leave()
        watch.close(leaves)
        tells = tells and not leaves  # one watch is enough
    threads.join(PATIENCE_AFTER_FAILURE_S if failed else PATIENCE_S)
    gloo_threads.wait_until_idle(PATIENCE_AFTER_FAILURE_S)


# They belong to the parent, which also says that it leaves.
os.register_at_fork(after_in_child=_watches.clear)
