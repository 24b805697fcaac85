# SPDX-License-Identifier: Apache-2.0
"""A watch over all ranks for as long as no engine has one: while a plan is searched, "auto" measures, and the engine is made.

    with starting("making the engine", timeout_s=300):      # all ranks, each as often as the others
        ...

Each of these may take long, and waits for the others in collectives of DeepSpeed's and torch's. A rank that gives no sign of life for the time-out is
named by the others, which end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch.distributed as dist
from ostinato.ranks.groups import is_of_a_peer
from ostinato.ranks.presence import Presence
from ostinato.ranks.watch import Watch
from torch.distributed.distributed_c10d import _get_default_store

from .last_words import end_with

_starts = count()  # every rank makes its engines in the same order


@contextmanager
def starting(what: str, timeout_s: float) -> Iterator[None]:
    """`what`: what all ranks do meanwhile, in words."""
    store, rank, ranks = _get_default_store(), dist.get_rank(), dist.get_world_size()
    name, period_s, where = f"start {next(_starts)}", min(1.0, timeout_s / 4), f"rank {rank} is {what}"
    presence = Presence(name, rank, ranks)
    watch = Watch(store, name, rank, ranks, lambda: where, period_s, presence)
    try:
        with watch.vigil(timeout_s, lambda missed: end_with(f"{where}: {missed}", watch.give_up)).during(what):
            yield
    except RuntimeError as error:
        if is_of_a_peer(error):
            watch.give_up(f"{where}: {error}")
        raise
    finally:
        watch.close()
