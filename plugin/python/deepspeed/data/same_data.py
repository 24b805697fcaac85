# SPDX-License-Identifier: Apache-2.0
"""Checks that ranks that read data under a plan get what 1F1B reads: inputs from the first rank's iterator,
labels from the last rank's.

    same = SameData(engine, stages)
    same.begin(data_iter)              # the first step; train_batch() was given this iterator
    same.note(item)                    # what this rank reads from it
    said = same.end(draws=True)        # all ranks: which data differ, in words

A script may make up what a rank does not need (labels on the first rank, inputs on the last), and 1F1B never
looks at it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from ostinato.profile.model.tensors import tensors
from ostinato.groups import everyones

from ..randomness import generators
from ..section.plans import Stage
from ..randomness.random_state import random_state_kept
from ..upstream import Engine

KINDS = ("inputs", "labels")


class SameData:
    """Compares one engine's first items: what ranks read and, for a rank that reads only under 1F1B, an item
    that it takes just for the comparison."""

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
        self._wanted = False  # until begin(): evaluations may come before it
        self._digests: tuple[str, ...] = ()  # of the first item, by kind
        self._made = generators.current()
        # Of a rank that reads only here or, without data, only under 1F1B: what the script has drawn since.
        self._drew: tuple[bool, generators.Counts | None] | None = None
        self.looking = False  # at an item just for the comparison

    def begin(self, data_iter: Iterator[Any] | None) -> None:
        engine = self._engine
        self._wanted = self._others and (self._reads or engine.stage_id in self._theirs.values())
        given = next(
            (
                it
                for it in (data_iter, engine.data_iterator, engine._ostinato.unread_iterator)
                if it is not None
            ),
            None,
        )
        if self._wanted and (self._reads or given is None):
            self._drew = self._reads, generators.taken(self._made, generators.current())
        if self._wanted and given is not None and not self._reads:
            self.looking = True  # a loader may ask the engine which rank it is for
            with random_state_kept():
                self._look(given)
            self.looking = False
        engine._ostinato.unread_iterator = None

    def _look(self, given: Iterator[Any]) -> None:
        try:
            item = next(given)
            self.note(item if self._engine.batch_fn is None else self._engine.batch_fn(item))
        except Exception:  # from the script; the plan does not need this item
            self._wanted = False

    def note(self, item: Any) -> None:
        if self._wanted:
            self._wanted, parts = False, tuple(item)[:2] if isinstance(item, tuple | list) else ()
            self._digests = tuple(map(digest, parts)) if len(parts) == 2 else ()

    def end(self, draws: bool) -> list[str]:
        """What the first rank of the pipeline should say. `draws`: layers draw random numbers, which are 1F1B's. All
        ranks must call it."""
        if not self._others:
            return []
        held = everyones((self._digests, self._drew), self._engine.grid.pp_proc_group)
        everyone, drew = [digests for digests, _ in held], [drawn for _, drawn in held]
        return [
            *(
                self._sentence(kind, rank)
                for kind in KINDS
                for rank in sorted(self._ours[kind])
                if self._differ(everyone, kind, rank)
            ),
            *(self._of_seed(rank) for rank in _behind(drew) if draws),
        ][: not self._engine.stage_id]

    def _of_seed(self, rank: int) -> str:
        return (
            f"rank {self._engine.grid.pp_group[rank]} has no data, but reads them under 1F1B, and the script has drawn random numbers only where there are "
            "data, as a DataLoader does when it begins: layers draw different ones than under 1F1B, and the losses are as with a different seed; make the "
            "loader on every rank"
        )

    def _differ(self, everyone: list[tuple[str, ...]], kind: str, rank: int) -> bool:
        ours, theirs, index = everyone[rank], everyone[self._theirs[kind]], KINDS.index(kind)
        return bool(ours and theirs) and ours[index] != theirs[index]

    def _sentence(self, kind: str, rank: int) -> str:
        ranks = self._engine.grid.pp_group
        theirs, asked = ranks[self._theirs[kind]], "first" if kind == "inputs" else "last"
        return (
            f"the plan takes {kind} from the data iterator of rank {ranks[rank]}, 1F1B from that of rank {theirs}, and the two differ: the losses are those of "
            f"different data, unless the script makes {kind} up only where engine.is_{asked}_stage() is False; give every rank the same data"
        )


def _behind(drew: Sequence[tuple[bool, generators.Counts | None] | None]) -> list[int]:
    """Ranks without data where the script has drawn different amounts than on those that read."""
    where_read = {counts for reads, counts in filter(None, drew) if reads}
    return [
        rank for rank, said in enumerate(drew) if said is not None and not said[0] and where_read - {said[1]}
    ]


def digest(value: Any) -> str:
    """Digest of the tensors in a loader's item."""
    found = hashlib.sha256()
    for tensor in tensors(value):
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(
            tensor.detach().to_dense().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()
