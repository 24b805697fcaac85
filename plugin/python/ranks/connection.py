# SPDX-License-Identifier: Apache-2.0
"""A connection to the process group's store, for threads beside the training thread.

    store = connected(held)          # on the thread that will use it: the first time it may take seconds
    store.check(["ostinato/..."])

Torch's own calls may keep `held` busy for half an hour. So all threads of a process share a second connection,
and ask only what the store answers at once. Torch resolves names for each connection that it makes, and a name
server that does not answer costs 5 s. A forked process makes a new connection: two processes on one connection
would read each other's answers.
"""

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_making = threading.Lock()


def connected(held) -> Any:
    """The connection, which stays the same while `held` lives. Raises RuntimeError where the store is gone."""
    with _making:
        store = _made.get(held)
        if store is None:
            store = _made[held] = held.clone()
        return store


def _forget() -> None:
    global _made, _making
    _made, _making = weakref.WeakKeyDictionary(), threading.Lock()  # another thread may have held the lock


os.register_at_fork(after_in_child=_forget)
