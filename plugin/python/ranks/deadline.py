# SPDX-License-Identifier: Apache-2.0
"""A time-out for calls that have none, or a very long one: collectives of other libraries, the optimizer's step.

    deadline = Deadline(300.0, expired)
    with deadline.during("adding gradients", " over ranks 0, 2"):
        reduce()                        # after 300 s: expired("adding gradients over ranks 0, 2 takes longer than 300 s")

expired() runs on a separate thread, because the waiting thread cannot be interrupted: it reports, and ends the
process. This works if the call releases Python's lock, as torch's calls do.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Deadline:
    def __init__(self, limit_s: float, expired: Callable[[str], None]):
        self._limit_s, self._expired = limit_s, expired
        self._changed = threading.Condition()
        self._call = "", ""  # in words, and with which ranks
        self._begun, self._over = 0, False  # how many calls have begun
        self._since, self._renewed = 0.0, 0.0
        self.thread = threading.Thread(target=self._run, daemon=True, name="ostinato-deadline")
        self.thread.start()

    @contextmanager
    def during(self, what: str, ranks: str = "") -> Iterator[None]:
        """Of nested calls the outermost counts. `ranks`: the end of `what`, which may differ between ranks that
        make the same call."""
        if self.what:
            yield
            return
        self._become(what, ranks)
        try:
            yield
        finally:
            self._become("", "")

    def renew(self) -> None:
        """Gives the current call the full limit again."""
        with self._changed:
            self._begun, self._renewed = self._begun + 1, time.monotonic()
            self._changed.notify_all()

    @property
    def call(self) -> tuple[str, str]:
        """The current call, in words, and with which ranks; empty if there is none."""
        return self._call

    @property
    def what(self) -> str:
        """Both."""
        return "".join(self._call)

    @property
    def lasts_s(self) -> float:
        """Seconds since the current call began."""
        return time.monotonic() - self._since

    @property
    def left_s(self) -> float:
        """Seconds until the current call is too long; infinite if there is none."""
        return self._limit_s - (time.monotonic() - self._renewed) if self.what else math.inf

    def close(self) -> None:
        """Ends the thread, without waiting for it."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _become(self, what: str, ranks: str) -> None:
        with self._changed:
            self._since = self._renewed = time.monotonic()
            self._call = what, ranks
            self._begun += bool(what)
            self._changed.notify_all()

    def _run(self) -> None:
        late = ""
        while not self._over and not late:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self.what)
                late = self._late()
        if late:
            self._expired(f"{late} takes longer than {self._limit_s:g} s")

    def _late(self) -> str:
        """Waits until the current call ends; returns the call if it takes too long."""
        what, begun = self.what, self._begun
        over = self._changed.wait_for(
            lambda: self._over or not self.what or self._begun != begun, self._limit_s
        )
        return "" if over else what
