# SPDX-License-Identifier: Apache-2.0
"""A watch over ranks that make what they train with, and have no other watch yet: a plan is searched, "auto"
measures, engines and pipelines are made.

    with starting("making its engine", ranks, timeout_s=300):      # all of `ranks`, each as often as the others
        ...

Each of these may take long, and waits for the others in collectives of DeepSpeed's and torch's. A rank that
gives no sign of life is named by the others, which end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from ostinato.groups import is_of_a_peer
from torch.distributed.distributed_c10d import _get_default_store

from .launcher import end_with
from .names import agreed
from .presence import Presence
from .watch import Watch


@contextmanager
def starting(what: str, ranks: Sequence[int], timeout_s: float) -> Iterator[None]:
    """`what`: what all of them do meanwhile, in words. `ranks`: global; what is said numbers them by their
    places here."""
    name, rank, period_s = agreed("start", ranks), ranks.index(dist.get_rank()), min(1.0, timeout_s / 4)
    where = f"rank {rank} is {what}"
    presence = Presence(name, rank, len(ranks))
    watch = Watch(_get_default_store(), name, rank, len(ranks), lambda: where, period_s, presence)
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
