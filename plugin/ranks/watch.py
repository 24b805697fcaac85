# SPDX-License-Identifier: Apache-2.0
"""When one rank gives up waiting, every rank says where it is: who waits for whom is then in the logs of one run.

    watch = Watch(store, "step", rank, ranks, executor.position, period_s=1.0)
    try:
        executor.run()
    except StepTimeout as error:
        watch.give_up(str(error))    # says it; returns when all have spoken, or after a few periods
        raise

A thread of each rank asks the store once a period, so a rank is heard while it waits in the executor, or computes without
end in Python. It costs a few messages a period, and nothing in between. A rank whose launcher is gone ends.

A process that ends waits for its threads first: one that comes back from the store to an interpreter that is being taken down would
abort it. The process that holds the store, where no agent of the launcher does, tells the others that it leaves, and gives them
a period to stop asking.
"""

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist

from . import gloo_threads, threads
from .connection import connected
from .deadline import Deadline
from .lateness import Lateness
from .launcher import Launcher, agent_has_the_store
from .presence import NO_STORE, Presence, ranks_in_words, silent

PATIENCE_S = 20.0  # for threads, when the process ends
PATIENCE_AFTER_FAILURE_S = 2.0  # the store may be what has failed
LAUNCHER_GONE = "the launcher is gone, so this rank ends"
_LEAVING, _LEFT = "ostinato/watch/leaving", "ostinato/watch/left"
_watches: list["Watch"] = []


def late_after(timeout_s: float) -> float:
    """Seconds of waiting that are worth a line, of a rank that gives up after `timeout_s`."""
    return min(30.0, timeout_s / 2)


def say(text: str) -> None:
    """Where nothing can be written (a full disk, a closed stream) nothing is said, and what is under way goes on."""
    with suppress(OSError, ValueError):
        print(f"ostinato: {text}", file=sys.stderr, flush=True)


class Watch:
    """`name`: the same on all ranks of one pipeline, and of this pipeline alone. `presence`: what its thread
    answers for this rank. `late_s`: a rank that waits so long in the executor says so, once a wait.
    """

    def __init__(
        self, store, name: str, rank: int, ranks: int, position: Callable[[], str], period_s: float,
        presence: Presence | None = None, late_s: float = math.inf,
    ):  # fmt: skip
        self._store = store  # its server lives as long as it, where this process has it
        self._rank, self._ranks = rank, ranks
        # In the world, which the script may have ended when its process does.
        self._place, self._world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (rank, ranks)
        self._failed, self._spoken = f"ostinato/watch/{name}/failed", f"ostinato/watch/{name}/spoken"
        self._position, self._period_s = position, period_s
        self._presence, self._launcher, self._lateness = presence, Launcher(), Lateness(position, late_s)
        self._over, self._leaves = threading.Event(), False
        self._deadline: Deadline | None = None
        self._reaches = True  # the process with the store is there, and has not said that it leaves
        _watches.append(self)
        self._thread = threads.start(self._run)

    def limit(self, limit_s: float, expired: Callable[[str], None]) -> Deadline:
        """For what no other time-out covers; it ends with this watch."""
        self._deadline = Deadline(limit_s, expired)
        threads.keep(self._deadline.thread)
        return self._deadline

    def give_up(self, why: str = "") -> None:
        """This rank has failed and says so itself: the others are asked to, and given the time. Returns in bounded time, whoever holds
        the store.
        """
        self._over.set()
        if why:
            say(why)
        if self._launcher.gone():  # which ended the peers that this rank misses
            say(f"{LAUNCHER_GONE}; {self._position()}")
        asking = threads.start(self._ask)
        asking.join(6 * self._period_s)
        if asking.is_alive():
            say(NO_STORE)

    def close(self, leaves: bool = False) -> None:
        """`leaves`: the process ends in good order, and the watch's thread tells the others: another one may not start then."""
        self._leaves = leaves
        self._over.set()
        if self._deadline is not None:
            self._deadline.close()
        with suppress(ValueError):  # closed already
            _watches.remove(self)

    def _ask(self) -> None:
        try:
            store = connected(self._store)
            store.set(self._failed, str(self._rank))
            end = time.monotonic() + 5 * self._period_s
            store.set(f"{self._spoken}/{self._rank}", "")
            missed = list(range(self._ranks))
            while (missed := silent(store, self._spoken, missed)) and time.monotonic() < end:
                time.sleep(self._period_s / 10)
            if missed:
                say(f"{ranks_in_words(missed)} said nothing: stopped, gone, or busy with what keeps Python's lock")
        except RuntimeError:
            say("the store is gone, so nobody can be asked: the process that holds it, rank 0 or the launcher's agent, has ended")

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self._end_without_launcher()
            if late := self._lateness.news():
                say(f"{late}: late, but the run goes on")
            try:
                store = connected(self._store)
                if store.check([self._failed]):
                    who = f"rank {store.get(self._failed).decode()} gave up"
                    say(f"{who}; {self._position()}")
                    store.set(f"{self._spoken}/{self._rank}", "")
                    return
                if store.check([_LEAVING]):
                    self._reaches = False
                    self._tell_left(store)
                    return
                if self._presence is not None:
                    self._presence.answer(store)
            except RuntimeError:
                self._reaches = False
                say(f"the store of the process group is gone; {self._position()}")
                break
        while not self._over.wait(self._period_s):  # the launcher may have had it
            self._end_without_launcher()
        if self._leaves and self._reaches:
            self.leave()

    def _end_without_launcher(self) -> None:
        if self._launcher.gone():
            say(f"{LAUNCHER_GONE}; {self._position()}")
            os._exit(1)

    def may_leave(self) -> bool:
        """The store can be told that this process ends."""
        return self._reaches and self._thread.is_alive()

    def leave(self) -> None:
        """This process ends in good order: the one with the store waits for the others to stop asking it. Once a process."""
        try:
            store = connected(self._store)
            if self._place > 0:  # in torch's own stores rank 0 has it
                return self._tell_left(store)
            store.set(_LEAVING, "1")
            others, end = [f"{_LEFT}/{place}" for place in range(1, self._world)], time.monotonic() + 2 * self._period_s
            while not store.check(others) and time.monotonic() < end:
                time.sleep(self._period_s / 20)
        except RuntimeError:
            pass

    def _tell_left(self, store) -> None:
        store.set(f"{_LEFT}/{self._place}", "")


@atexit.register
def _end() -> None:
    failed = getattr(sys, "last_value", None) is not None  # the others are to say where they are
    tells = not failed and not agent_has_the_store()
    for watch in list(_watches):
        leaves = tells and watch.may_leave()
        watch.close(leaves)
        tells = tells and not leaves  # one of them does
    threads.join(PATIENCE_AFTER_FAILURE_S if failed else PATIENCE_S)
    gloo_threads.wait_until_idle(PATIENCE_AFTER_FAILURE_S)


os.register_at_fork(after_in_child=_watches.clear)  # they are the parent's, and so is what is said of leaving

