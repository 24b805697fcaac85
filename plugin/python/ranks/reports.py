# SPDX-License-Identifier: Apache-2.0
"""Exchanges what all ranks must know before they meet in collectives: a rank that does not take part, or has died,
is named after a time-out.

    digests = exchanged("plan", digest, ranks=[0, 1], timeout_s=300)        # of all, in the order of `ranks`

It goes through the store of the default process group, so it cannot mix with what a rank does instead.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from . import threads
from .names import agreed
from .presence import NO_STORE, ranks_in_words

PATIENCE_S = 3.0  # for a store that may be stopped


class Missing(Exception):
    """Ranks did not report in time, as `str()` says. `store`: that is not known, because the store did not
    answer."""

    def __init__(self, said: str, store: bool = False):
        super().__init__(said)
        self.store = store


def exchanged(what: str, mine: str, ranks: Sequence[int], timeout_s: float) -> list[str]:
    """`ranks`: global; all of them must call it. Missing numbers them by their places here."""
    store, prefix = _get_default_store(), f"ostinato/{agreed(what, ranks)}"
    keys = [f"{prefix}/{place}" for place in range(len(ranks))]
    try:
        store.set(keys[ranks.index(dist.get_rank())], mine)
        store.wait(keys, timedelta(seconds=timeout_s))
        everyones = [store.get(key).decode() for key in keys]
        _leave_together(store, prefix, len(ranks), timeout_s)
    except dist.DistNetworkError:
        raise Missing(f"the ranks did not agree, and {NO_STORE}", store=True) from None
    except dist.DistError:
        raise _missing(store, keys, timeout_s) from None
    return everyones


def _missing(store, keys: list[str], timeout_s: float) -> Missing:
    """Finds out which ranks are missing, or that the store is."""
    found: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):
            found.extend(place for place, key in enumerate(keys) if not store.check([key]))

    asking = threads.start(ask)
    asking.join(PATIENCE_S)
    if asking.is_alive() or not found:
        return Missing(f"the ranks did not report within {timeout_s:g} s, and {NO_STORE}", store=True)
    return Missing(f"{ranks_in_words(found)} did not report within {timeout_s:g} s")


def _leave_together(store, prefix: str, ranks: int, timeout_s: float) -> None:
    """Waits until all have read, because rank 0 may hold the store, and may be about to raise. One that gave up before
    the last came never reads."""
    if store.add(f"{prefix}/read", 1) == ranks:
        store.set(f"{prefix}/all", "read")
    try:
        store.wait([f"{prefix}/all"], timedelta(seconds=min(30.0, timeout_s)))
    except (dist.DistError, RuntimeError):
        pass  # other ranks are gone: they have read, or died; the next step will report that
