# SPDX-License-Identifier: Apache-2.0
"""When one rank gives up waiting, or fails, every rank says why, and where it is itself: who waits for whom
is then in the logs of one run.

    watch = Watch(store, "step", rank, ranks, executor.position, period_s=1.0)
    try:
        executor.run()
    except StepTimeout as error:
        watch.give_up(str(error))    # says it; returns when all have spoken, or after a few periods
        raise

The first that gives up is the cause: those that follow it miss a neighbour, which in a row of ranks need not
be the one that failed.

A thread of each rank asks the store once a period, so a rank is heard while it waits in the executor, or
computes without end in Python. It costs a few messages a period, and nothing in between. A rank whose
launcher is gone ends.

A process that ends waits for its threads first: one that comes back from the store to an interpreter that is
being taken down would abort it. The process that holds the store, where no agent of the launcher does, tells
the others that it leaves, and gives them a period to stop asking.
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
from ostinato.errors import Error, printable
from ostinato.groups import is_of_a_peer

from . import gloo_threads, threads
from .connection import connected
from .deadline import Deadline
from .elsewhere import Elsewhere, in_a_collective
from .lateness import Lateness
from .launcher import Launcher, agent_has_the_store
from .presence import NO_STORE, Presence, Vigil, ranks_in_words, silent

PATIENCE_S = 20.0  # for threads, when the process ends
PATIENCE_AFTER_FAILURE_S = 2.0  # the store may be what has failed
LOOKS = 5  # a period each, for the others to speak once one gives up
LONGEST = 1000  # characters of what the others are told
STORE_GONE = "the store is gone, so no rank can be asked: the process that holds it, rank 0 or the launcher's agent, has ended"
LAUNCHER_GONE = "the launcher is gone, so this rank ends"
_LEAVING, _LEFT = "ostinato/watch/leaving", "ostinato/watch/left"
_watches: list["Watch"] = []


def late_after(timeout_s: float) -> float:
    """Seconds of waiting that are worth a line, of a rank that gives up after `timeout_s`."""
    return min(30.0, timeout_s / 2)


def say(text: str) -> None:
    """Where nothing can be written (a full disk, a closed stream) nothing is said, and what is under way goes
    on. In one write: print() makes two, between which another thread says its own.
    """
    with suppress(OSError, ValueError):
        sys.stderr.write(f"ostinato: {text}\n")
        sys.stderr.flush()


def in_a_line(text: str) -> str:
    """The first of it, which holds what matters: torch's errors go on with a stack."""
    return printable(text.split("\n", 1)[0])[:LONGEST]


class Watch:
    """`name`: the same on all ranks of one pipeline, and of this pipeline alone. `presence`: what its thread
    answers for this rank. `late_s`: a rank that waits so long in the executor says so, once a wait.
    `together`: a name that several pipelines share: a rank of one of them that gives up is heard in all.
    `lost`: called from the watch's thread once one has given up, and the others have had their time to say
    where they are.
    """

    def __init__(
        self, store, name: str, rank: int, ranks: int, position: Callable[[], str], period_s: float,
        presence: Presence | None = None, late_s: float = math.inf, together: str = "", lost: Callable[[str], None] = lambda why: None,
    ):  # fmt: skip
        self._store = store  # its server lives as long as it, where this process has it
        self._rank, self._ranks = rank, ranks
        # In the world, which the script may have ended when its process does.
        self._place, self._world = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (rank, ranks)
        )
        self._who = (
            f"rank {rank}"
            if not together or rank == self._place
            else f"rank {self._place} (pipeline rank {rank})"
        )
        self._failed, self._spoken = (
            f"ostinato/watch/{together or name}/failed",
            f"ostinato/watch/{name}/spoken",
        )
        self._position, self._period_s = position, period_s
        self._presence, self._launcher, self._lateness = presence, Launcher(), Lateness(position, late_s)
        self._elsewhere = None if presence is None else Elsewhere(presence)
        self._late = ""  # a wait to tell of, once the others have said where they are
        self._over, self._leaves = threading.Event(), False
        self._why, self._names_silent, self._asked = (
            "",
            False,
            threading.Event(),
        )  # this rank gives up; its thread has asked the others
        self._heard, self._lost = "", lost  # that another has given up, and why
        self._silent: list[int] = []  # who has said nothing since then, when last looked
        self._looks = 0  # that are left for it
        self._deadlines: list[Deadline] = []  # that end with it
        self._vigil: Vigil | None = None
        self._reaches = True  # the process with the store is there, and has not said that it leaves
        _watches.append(self)
        self._thread = threads.start(self._run)

    def limit(self, limit_s: float, expired: Callable[[str], None]) -> Deadline:
        """For what no other time-out covers; it ends with this watch."""
        return self._ending(Deadline(limit_s, expired))

    def vigil(self, limit_s: float, lost: Callable[[str], None]) -> Vigil:
        """For what takes as long as it takes, over the ranks of its presence; it ends with this watch."""
        assert self._presence is not None
        vigil = Vigil(self._presence, limit_s, self._period_s, lost)
        self._ending(vigil.deadline)
        self._vigil = vigil
        return vigil

    def _ending(self, deadline: Deadline) -> Deadline:
        threads.keep(deadline.thread)
        self._deadlines.append(deadline)
        return deadline

    def give_up(self, why: str = "", aloud: bool = True) -> None:
        """This rank has failed and says so itself: the others are asked to, and given the time. Returns in
        bounded time, whoever holds the store. Not `aloud`: a traceback says it.
        """
        if why and aloud:
            say(why)
        if self._launcher.gone():  # which ended the peers that this rank misses
            say(f"{LAUNCHER_GONE}; {self._position()}")
        self._tell(why or self._position(), names_silent=True)

    def tell_of(self, error: BaseException, how: str = "fails") -> None:
        """give_up() for a rank whose traceback says it: the others are told what happened to it, and where:
        its notes say, or it is where it was. Where a collective of anybody's has failed, it says itself who
        is silent, for torch names nobody.
        """
        where = [note.removeprefix("ostinato: ") for note in getattr(error, "__notes__", ())] or [
            self._position()
        ]
        said = f"{self._who} {how} with {type(error).__name__}: {in_a_line(str(error))}"
        self._tell(
            "; ".join([said, *where]), names_silent=isinstance(error, RuntimeError) and is_of_a_peer(error)
        )

    def _tell(self, why: str, names_silent: bool) -> None:
        """Once; what fails later on this rank follows from it. The watch's thread does it: Python hangs where
        there is no memory to start another one, and this may be what has failed.
        """
        if self._why:
            return
        self._why, self._names_silent = in_a_line(why), names_silent
        self._over.set()
        if not self._thread.is_alive():
            say(f"{STORE_GONE}; {self._position()}")
        elif not self._asked.wait(6 * self._period_s + 1.0):  # it asks for five
            say(NO_STORE)

    def close(self, leaves: bool = False) -> None:
        """`leaves`: the process ends in good order, and the watch's thread tells the others: another one may
        not start then."""
        self._leaves = leaves
        self._over.set()
        for deadline in self._deadlines:
            deadline.close()
        with suppress(ValueError):  # closed already
            _watches.remove(self)

    def _ask(self) -> None:
        try:
            store, mine = connected(self._store), json.dumps([self._who, self._why])
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

    def _note_silent(self, store) -> list[int]:
        """Who has said nothing since one gave up."""
        self._silent = silent(store, self._spoken, self._silent or list(range(self._ranks)))
        return self._silent

    def _say_silent(self) -> None:
        if self._silent:
            say(
                f"{ranks_in_words(self._silent)} said nothing: stopped, gone, or busy with what keeps Python's lock"
            )
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
        """What the others say in the store. False: they must not be asked any more, for the process that
        holds it leaves."""
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
        except RuntimeError:  # the launcher may have had it
            self._reaches = False
            say(f"the store of the process group is gone; {self._position()}")
            self._say_silent()
        return True

    def _say_late(self, others: list[str]) -> None:
        """Where all are in the same collective, or write one checkpoint, nobody is late."""
        if others or not in_a_collective(self._late):
            say("; ".join([self._late, *others]) + ": late, but the run goes on")
        else:
            self._lateness.unsaid()
        self._late = ""

    def _end_without_launcher(self) -> None:
        if self._launcher.gone():
            say(f"{LAUNCHER_GONE}; {self._position()}")
            os._exit(1)

    def may_leave(self) -> bool:
        """The store can be told that this process ends."""
        return self._reaches and self._thread.is_alive()

    def leave(self) -> None:
        """This process ends in good order: the one with the store waits for the others to stop asking it.
        Once a process."""
        try:
            store = connected(self._store)
            if self._place > 0:  # in torch's own stores rank 0 has it
                return self._tell_left(store)
            store.set(_LEAVING, "1")
            others, end = (
                [f"{_LEFT}/{place}" for place in range(1, self._world)],
                time.monotonic() + 2 * self._period_s,
            )
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
    if error is not None and not isinstance(error, Error):  # ours, all ranks raise alike
        for watch in list(_watches):
            watch.tell_of(error, "ends")
    tells = not failed and not agent_has_the_store()
    for watch in list(_watches):
        leaves = tells and watch.may_leave()
        watch.close(leaves)
        tells = tells and not leaves  # one of them does
    threads.join(PATIENCE_AFTER_FAILURE_S if failed else PATIENCE_S)
    gloo_threads.wait_until_idle(PATIENCE_AFTER_FAILURE_S)


os.register_at_fork(after_in_child=_watches.clear)  # they are the parent's, and so is what is said of leaving
