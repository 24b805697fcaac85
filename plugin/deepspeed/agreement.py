# SPDX-License-Identifier: Apache-2.0
"""Before anything is changed, every rank learns what every other rank holds, and all stop together where they differ.

    agree(Statement(plan=sha, ...), timeout_s=300)     # raises the same OstinatoError everywhere, or nowhere

It goes through the store of the default process group and not through a collective: a rank that has no section, or died,
is then named after the timeout, where a collective would hang or mix with DeepSpeed's own.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from itertools import count, zip_longest

import torch.distributed as dist
from ostinato.ranks import threads
from ostinato.ranks.presence import NO_STORE, ranks_in_words
from torch.distributed.distributed_c10d import _get_default_store

from .errors import OstinatoError, Unsupported

PATIENCE_S = 3.0  # with a store that may be stopped
_rounds = count()  # every rank makes its engines in the same order


@dataclass(frozen=True)
class Statement:
    """What one rank holds. `model`: the names of all layers, a line each; `layers`: the digests of those that it has built, by
    index. `configuration`: what of DeepSpeed's own all ranks must hold, a line each. `place`: the host and cores that it computes on (cores.Place). `error` and `unsupported`: why it cannot run, "" where it can.
    """

    version: str = ""
    plan: str = ""
    placement: str = ""
    model: str = ""
    layers: dict[int, str] = field(default_factory=dict)
    options: str = ""
    configuration: str = ""
    place: tuple[str, tuple[int, ...], int] = ("", (), 1)
    error: str = ""
    unsupported: str = ""


WORDS = {
    "version": "another version of ostinato, torch or DeepSpeed",
    "plan": "another plan",
    "placement": "another placement",
    "model": "another model",
    "options": 'other options in the "ostinato" section',
    "configuration": "another DeepSpeed configuration",
}


def agree(mine: Statement, timeout_s: float) -> list[Statement]:
    """All statements, by rank. Raises where a rank reports an error, differs from rank 0, or does not report in time."""
    everyone = _exchange(mine, timeout_s)
    _raise_reported(everyone, "error", OstinatoError)
    for name in (f.name for f in fields(Statement) if f.name in WORDS):
        differing = [r for r, s in enumerate(everyone) if getattr(s, name) != getattr(everyone[0], name)]
        if differing:
            raise OstinatoError(_difference(everyone, differing, name))
    _raise_reported(everyone, "unsupported", Unsupported)
    return everyone


def _raise_reported(everyone: list[Statement], field: str, kind: type[OstinatoError]) -> None:
    """One message for all ranks: each different reason once, after the ranks that gave it."""
    reasons: dict[str, list[int]] = {}
    for rank, statement in enumerate(everyone):
        if getattr(statement, field):
            reasons.setdefault(getattr(statement, field), []).append(rank)
    if reasons:
        whole = [list(range(len(everyone)))]
        said = (text if ranks in whole else f"{ranks_in_words(ranks)}: {text}" for text, ranks in reasons.items())
        raise kind("; ".join(said))


def _difference(everyone: list[Statement], differing: list[int], field: str) -> str:
    first, other = _first_difference(getattr(everyone[0], field), getattr(everyone[differing[0]], field))
    return f"{ranks_in_words(differing)} hold{'s'[: len(differing) == 1]} {WORDS[field]} than rank 0: {other[:80]} against {first[:80]}"


def _first_difference(first: str, other: str) -> tuple[str, str]:
    """The first lines that differ."""
    lines = zip_longest(first.splitlines() or [""], other.splitlines() or [""], fillvalue="nothing")
    return next(pair for pair in lines if pair[0] != pair[1])


def _exchange(mine: Statement, timeout_s: float) -> list[Statement]:
    """Every rank's statement, by rank."""
    store, world = _get_default_store(), dist.get_world_size()
    prefix = f"ostinato/{next(_rounds)}"
    keys = [f"{prefix}/{rank}" for rank in range(world)]
    try:
        store.set(keys[dist.get_rank()], json.dumps(asdict(mine)))
        store.wait(keys, timedelta(seconds=timeout_s))
        everyone = [_read(store.get(key)) for key in keys]
        _leave_together(store, prefix, world)
    except dist.DistNetworkError:
        raise OstinatoError(f"before the ranks had agreed {NO_STORE}") from None
    except dist.DistError:
        raise OstinatoError(_missing(store, keys, timeout_s)) from None
    return everyone


def _missing(store, keys: list[str], timeout_s: float) -> str:
    """Who has not reported. The store may be what is missing."""
    found: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):
            found.extend(rank for rank, key in enumerate(keys) if not store.check([key]))

    asking = threads.start(ask)
    asking.join(PATIENCE_S)
    if asking.is_alive() or not found:
        return f"the ranks did not report within {timeout_s:g} s, and {NO_STORE}"
    return (
        f"{ranks_in_words(found)} did not report within {timeout_s:g} s: is ostinato installed there, and is the "
        '"ostinato" section in that configuration?'
    )


def _read(text: bytes) -> Statement:
    statement = json.loads(text)
    return Statement(**statement | {"layers": {int(index): digest for index, digest in statement["layers"].items()}})


def _leave_together(store, prefix: str, world: int) -> None:
    """Rank 0 may hold the store, and may be about to raise: it stays until all have read."""
    if store.add(f"{prefix}/read", 1) == world:
        store.set(f"{prefix}/all", "read")
    try:
        store.wait([f"{prefix}/all"], timedelta(seconds=30))
    except (dist.DistError, RuntimeError):
        pass  # the others are gone: they have read, or died; what comes next will say so
