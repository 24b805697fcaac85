# SPDX-License-Identifier: Apache-2.0
"""Threads beside the one that trains, which the end of the process waits for (watch): one that comes back
from a call to an interpreter that is being taken down would abort it.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_threads: list[threading.Thread] = []


def start(run: Callable[[], None]) -> threading.Thread:
    """Starts a thread that ends with the process, which waits for it a while."""
    thread = threading.Thread(target=run, daemon=True, name="ostinato-watch")
    keep(thread)
    thread.start()
    return thread


def keep(thread: threading.Thread) -> None:
    """Makes join() wait for the thread, too."""
    _threads[:] = [other for other in _threads if other.is_alive()]
    _threads.append(thread)


def weakly(method: Callable, otherwise: Any = None) -> Callable:
    """A bound method for what must not keep its object alive: a thread, or an executor. Once that is gone, calls
    return `otherwise`."""
    held = weakref.WeakMethod(method)

    def call(*given: Any) -> Any:
        found = held()
        return otherwise if found is None else found(*given)

    return call


def join(patience_s: float) -> None:
    """Waits for all threads, at most `patience_s` seconds."""
    end = time.monotonic() + patience_s
    for thread in list(_threads):
        thread.join(max(0.0, end - time.monotonic()))


os.register_at_fork(after_in_child=_threads.clear)  # a forked child has none of them
