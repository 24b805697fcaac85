# SPDX-License-Identifier: Apache-2.0
"""A connection to the store of the process group for threads beside the one that trains.

    store = connected(held)          # by the thread that will ask: the first time it may take seconds
    store.check(["ostinato/..."])

Torch's own calls may keep `held` busy for half an hour. All threads of a process share one other connection, and ask it only what it answers
at once. Torch looks up names for each connection that it makes, and a name server that does not answer keeps it for 5 s.
"""

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
