# SPDX-License-Identifier: Apache-2.0
"""Names the ranks that are missing while torch.distributed.init_process_group() waits: torch waits for half an
hour without naming any.

    name_absent()        # from here on, for process groups of the environment's ranks (env://)

    ostinato: rank 0 has waited 30 s in torch.distributed.init_process_group(): ranks 2, 3 have not called it

While the call lasts, a thread notes in the store that this rank has come, over a separate connection, and looks
for other ranks. Torch's time-out does not change. The lowest rank that has come speaks; where there is no store
yet, one rank of each machine.
"""

import functools
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from ostinato.errors import put

from . import again
from .launcher import agent_has_the_store
from .presence import ranks_in_words

PATIENCE_S = 30.0  # until the first line; then twice as long each time
PERIOD_S = 1.0
ANSWERS = timedelta(seconds=10)  # time-out of a store that is there
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def name_absent() -> None:
    """Idempotent."""
    original = dist.init_process_group
    if hasattr(original, "of_ostinato"):
        return

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        again.meet()
        if not _of_environment(original, args, kwargs):
            return original(*args, **kwargs)
        here = Arrivals(
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
        )
        try:
            return original(*args, **kwargs)
        finally:
            here.close()

    init.of_ostinato = True  # type: ignore[attr-defined]  # a mark on a function
    setattr(dist, "init_process_group", init)  # noqa: B010  # a type checker takes no assignment to a function


def _of_environment(init: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether the ranks meet where the environment says, and there is more than one."""
    try:
        given = inspect.signature(init).bind(*args, **kwargs).arguments
    except TypeError:
        return False  # torch will report that
    elsewhere = given.get("store") is not None or given.get("init_method") not in (None, "env://")
    return not elsewhere and all(name in os.environ for name in NEEDED) and os.environ["WORLD_SIZE"] != "1"


@dataclass
class Absent:
    """What is still missing, in words; `lowest`: whether this rank should say it."""

    words: str
    lowest: bool


class Arrivals:
    """Of one call, from now until close()."""

    def __init__(self, rank: int, ranks: int, host: str, port: int):
        self._rank, self._ranks, self._host, self._port = rank, ranks, host, port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="ostinato-arrivals")
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        # A thread that returns later may meet an interpreter that is shutting down.
        self._thread.join(2 * ANSWERS.total_seconds())

    def _run(self) -> None:
        begun, patience_s, store = time.monotonic(), PATIENCE_S, None
        while not self._over.wait(PERIOD_S):
            with suppress(RuntimeError, OSError):  # the store has come, or gone, between two calls
                store = store or self._come()
                waited_s = time.monotonic() - begun
                if waited_s >= patience_s:
                    patience_s *= 2
                    self._say(self._absent(store), waited_s)

    def _come(self):
        """Notes this rank in the store, and returns the store; None where nothing listens yet. Torch's own
        client would fill the screen with its attempts."""
        try:
            socket.create_connection((self._host, self._port), PERIOD_S).close()
        except OSError:
            return None
        store = dist.TCPStore(
            self._host, self._port, is_master=False, timeout=ANSWERS, wait_for_workers=False
        )
        store.set(self._key(self._rank), "")
        return store

    def _absent(self, store) -> Absent:
        if store is None:
            who = "the launcher's agent" if agent_has_the_store() else "rank 0"
            return Absent(
                f"nothing answers at {self._host}:{self._port}, where {who} should hold the store",
                os.environ.get("LOCAL_RANK", "0") == "0",
            )
        holder = None if agent_has_the_store() else 0  # has come, even if it has not noted so yet
        absent = [
            rank for rank in range(self._ranks) if rank != holder and not store.check([self._key(rank)])
        ]
        words = (
            f"{ranks_in_words(absent)} {'has' if len(absent) == 1 else 'have'} not called it"
            if absent
            else "all ranks have called it"
        )
        return Absent(words, all(rank in absent for rank in range(self._rank)))

    def _say(self, absent: Absent, waited_s: float) -> None:
        if absent.lowest:
            where = f"rank {self._rank} has waited {waited_s:.0f} s in torch.distributed.init_process_group()"
            put(f"ostinato: {where}: {absent.words}", error=True)

    @staticmethod
    def _key(rank: int) -> str:
        return f"ostinato/arrivals/{rank}"
