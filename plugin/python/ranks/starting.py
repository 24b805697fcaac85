# SPDX-License-Identifier: Apache-2.0
"""A watch over ranks while they start and have no other watch yet: they search a plan, measure for "auto", or make
engines and pipelines.

    with starting("making its engine", ranks, timeout_s=300):      # all of `ranks`, equally often
        ...

Each of these may take long, and ranks wait for each other in collectives of DeepSpeed and torch. If a rank gives
no sign of life, the rest name it, and end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from ostinato.groups import is_of_a_peer
from torch.distributed.distributed_c10d import _get_default_store

from .launcher import end_with
from .names import agreed
from .position import Position
from .presence import Presence
from .watch import Watch


@contextmanager
def starting(what: str, ranks: Sequence[int], timeout_s: float) -> Iterator[None]:
    """`what`: what all ranks do meanwhile, in words. `ranks`: global; messages number them by their places
    here."""
    name, rank, period_s = agreed("start", ranks), ranks.index(dist.get_rank()), min(1.0, timeout_s / 4)
    where = f"rank {rank} is {what}"
    presence = Presence(name, rank, len(ranks))
    watch = Watch(_get_default_store(), name, rank, len(ranks), lambda: Position(where), period_s, presence)
    try:
        with watch.vigil(timeout_s, lambda missed: end_with(f"{where}: {missed}", watch.give_up)).during(
            what
        ):
            yield
    except RuntimeError as error:
        if is_of_a_peer(error):
            watch.give_up(f"{where}: {error}")
        raise
    finally:
        watch.close()
