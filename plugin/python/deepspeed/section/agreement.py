# SPDX-License-Identifier: Apache-2.0
"""Before anything changes, every rank learns what all ranks hold, and all stop together where they differ.

    agree(Statement(plan=sha, ...), timeout_s=300)     # raises the same OstinatoError everywhere, or nowhere

It goes through the store instead of a collective (ranks/reports.py): where a rank has no section, a
collective would mix with DeepSpeed's own.
"""

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any, TypeVar

import torch.distributed as dist
from ostinato.groups import everyones
from ostinato.ranks.presence import ranks_in_words
from ostinato.ranks.reports import Missing, exchanged

from ..errors import OstinatoError, Unsupported


@dataclass(frozen=True)
class Statement:
    """What one rank holds. `model`: the names of all layers, one per line; `layers`: digests of the layers
    that the rank has built, by index. `configuration`: the part of DeepSpeed's configuration that must be
    equal on all ranks, one key per line. `place`: the host and cores that it computes on (cores.Place).
    `error` and `unsupported`: why it cannot run, "" where it can.
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


Answer = TypeVar("Answer")


class FileFault(OstinatoError):
    """What the operating system said of a file on rank 0, which may name none: who knows what it was for says so."""


def of_rank_0(answer: Callable[[], Answer]) -> Answer:
    """What `answer` returns on rank 0, on every rank. All must call it. Raises the same OstinatoError on every rank where
    rank 0 could not answer."""
    mine: Any = None
    error, kind = "", OstinatoError
    if dist.get_rank() == 0:
        try:
            mine = answer()
        except OSError as raised:
            error, kind = str(raised), FileFault
        except OstinatoError as raised:
            error, kind = str(raised), Unsupported if isinstance(raised, Unsupported) else OstinatoError
    mine, error, kind = everyones((mine, error, kind))[0]
    if error:
        raise kind(error)
    return mine


WORDS = {
    "version": "a different version of ostinato, torch or DeepSpeed",
    "plan": "a different plan",
    "placement": "a different placement",
    "model": "a different model",
    "options": 'different options in the "ostinato" section',
    "configuration": "a different DeepSpeed configuration",
}


def agree(mine: Statement, timeout_s: float) -> list[Statement]:
    """Returns all statements, by rank. Raises where a rank reports an error, differs from rank 0, or does not
    report in time."""
    everyone = _exchange(mine, timeout_s)
    _raise_reported(everyone, "error", OstinatoError)
    for name in (f.name for f in fields(Statement) if f.name in WORDS):
        differing = [r for r, s in enumerate(everyone) if getattr(s, name) != getattr(everyone[0], name)]
        if differing:
            raise OstinatoError(_difference(everyone, differing, name))
    _raise_reported(everyone, "unsupported", Unsupported)
    return everyone


def _raise_reported(everyone: list[Statement], field: str, kind: type[OstinatoError]) -> None:
    """Raises one message on all ranks: each reason once, after the ranks that gave it."""
    reasons: dict[str, list[int]] = {}
    for rank, statement in enumerate(everyone):
        if getattr(statement, field):
            reasons.setdefault(getattr(statement, field), []).append(rank)
    if reasons:
        whole = [list(range(len(everyone)))]
        said = (
            text if ranks in whole else f"{ranks_in_words(ranks)}: {text}" for text, ranks in reasons.items()
        )
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
    try:
        return [
            _read(text)
            for text in exchanged(
                "statement", json.dumps(asdict(mine)), range(dist.get_world_size()), timeout_s
            )
        ]
    except Missing as error:
        causes = ': check that ostinato is installed there, that its configuration has the "ostinato" section, and that it still runs (see its log)'
        raise OstinatoError(f"{error}{'' if error.store else causes}") from None


def _read(text: str) -> Statement:
    statement = json.loads(text)
    return Statement(
        **statement | {"layers": {int(index): digest for index, digest in statement["layers"].items()}}
    )


def versions() -> str:
    import deepspeed
    import torch

    try:
        own = importlib.metadata.version("ostinato")
    except importlib.metadata.PackageNotFoundError:
        own = "of a build tree"
    return f"ostinato {own}, torch {torch.__version__}, DeepSpeed {deepspeed.__version__}"
