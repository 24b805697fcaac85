# SPDX-License-Identifier: Apache-2.0
"""A connection to the store of the process group for threads beside the one that trains.

    store = connected(held)          # by the thread that will ask: the first time it may take seconds
    store.check(["ostinato/..."])

Torch's own calls may keep `held` busy for half an hour. All threads of a process share one other connection,
and ask it only what it answers at once. Torch looks up names for each connection that it makes, and a name
server that does not answer keeps it for 5 s. A process that is forked makes one of its own: two processes on
one connection would read each other's answers.
"""

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_making = threading.Lock()


def connected(held) -> Any:
    """Raises RuntimeError where the process with the store is gone. The same one as long as `held` lives."""
    with _making:
        store = _made.get(held)
        if store is None:
            store = _made[held] = held.clone()
        return store


def _forget() -> None:
    global _made, _making
    _made, _making = weakref.WeakKeyDictionary(), threading.Lock()  # which another thread may have held


os.register_at_fork(after_in_child=_forget)
