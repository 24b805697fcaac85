# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks that read data under a plan are given what 1F1B's are: inputs by the first rank's
iterator, labels by the last one's.

    readers = Readers(engine, stages)
    readers.begin(data_iter)           # the first step, which train_batch() was given this iterator for
    readers.note(item)                 # what this rank reads of it
    said = readers.end()               # all ranks: of which other data the losses are, in words

A script may make up what a rank does not need (labels on the first rank, inputs on the last), and 1F1B would
never look at it.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from ostinato.profile.model.tensors import tensors
from ostinato.groups import everyones

from ..section.plans import Stage
from ..randomness.random_state import random_state_kept
from ..upstream import Engine

KINDS = ("inputs", "labels")


class Readers:
    """Of one engine. Compares the first items: those that are read, and of a rank that reads under 1F1B only,
    one that is looked at."""

    def __init__(self, engine: Engine, stages: list[Stage]):
        self._engine = engine
        last = len(engine.grid.pp_group) - 1
        self._theirs = {"inputs": 0, "labels": last}  # pipeline ranks
        self._ours = {
            "inputs": {c.rank for c in stages if c.reads},
            "labels": {c.rank for c in stages if c.ends},
        }
        self._reads = engine.stage_id in self._ours["inputs"] | self._ours["labels"]
        self._others = any(self._ours[kind] - {self._theirs[kind]} for kind in KINDS)
        self._wanted = False  # from begin() on: evaluations may come before it
        self._digests: tuple[str, ...] = ()  # of the first item, by kind
        self.looking = False  # at an item that is not read under the plan

    def begin(self, data_iter: Iterator[Any] | None) -> None:
        engine = self._engine
        self._wanted = self._others and (self._reads or engine.stage_id in self._theirs.values())
        given = next(
            (it for it in (data_iter, engine.data_iterator, engine._ostinato.offered) if it is not None), None
        )
        if self._wanted and given is not None and not self._reads:
            self.looking = True  # for a loader that asks the engine which rank it is for
            with random_state_kept():
                self._look(given)
            self.looking = False
        engine._ostinato.offered = None

    def _look(self, given: Iterator[Any]) -> None:
        try:
            item = next(given)
            self.note(item if self._engine.batch_fn is None else self._engine.batch_fn(item))
        except Exception:  # the script's; nobody needs this item
            self._wanted = False

    def note(self, item: Any) -> None:
        if self._wanted:
            self._wanted, parts = False, tuple(item)[:2] if isinstance(item, tuple | list) else ()
            self._digests = tuple(map(digest, parts)) if len(parts) == 2 else ()

    def end(self) -> list[str]:
        """What the first rank of the pipeline is to say. All ranks must call it."""
        if not self._others:
            return []
        everyone = everyones(self._digests, self._engine.grid.pp_proc_group)
        return [
            self._words(kind, rank)
            for kind in KINDS
            for rank in sorted(self._ours[kind])
            if self._differ(everyone, kind, rank)
        ][: not self._engine.stage_id]

    def _differ(self, everyone: list[tuple[str, ...]], kind: str, rank: int) -> bool:
        ours, theirs, index = everyone[rank], everyone[self._theirs[kind]], KINDS.index(kind)
        return bool(ours and theirs) and ours[index] != theirs[index]

    def _words(self, kind: str, rank: int) -> str:
        ranks = self._engine.grid.pp_group
        theirs, asked = ranks[self._theirs[kind]], "first" if kind == "inputs" else "last"
        return (
            f"the plan takes {kind} from the data iterator of rank {ranks[rank]}, and 1F1B from that of rank {theirs}, which gives other ones: unless the script "
            f"makes these up where engine.is_{asked}_stage() is False, losses are those of other data; give every rank the same"
        )


def digest(value: Any) -> str:
    """Of the tensors in what a loader gives."""
    found = hashlib.sha256()
    for tensor in tensors(value):
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
