# SPDX-License-Identifier: Apache-2.0
"""Labels that the loss writes to. In 1F1B on a CPU these are the loader's own tensors; under a plan the loss has copies, for the loader reads on.

    labels = Labels(said=print)
    mine = labels.copy(7, given)       # of batch 7
    ...                                # the loss
    labels.ran(7)                      # notes what it has written to

Where a loader gives the same tensors again, as a list of batches does in the next epoch, they are as the loss left them in 1F1B alone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .items import own

WORDS = (
    "the loss writes to its labels, and the loader gives the same tensors again: in 1F1B on a CPU they are those that the loss has changed; let it write to a copy"
)


class Labels:
    """Of one engine. `said`: is told WORDS, once."""

    def __init__(self, said: Callable[[str], None]):
        self._said = said
        self._copied: dict[int, list[tuple[StorageWeakRef, torch.Tensor, int]]] = {}  # by batch: the original's, the copy, and its version
        self._written: dict[int, StorageWeakRef] = {}  # by storage, which no other one takes the place of while the reference is held

    def copy(self, batch: int, given: Any) -> Any:
        originals = [(tensor, StorageWeakRef(tensor.untyped_storage())) for tensor in _tensors(given)]
        if any(reference.cdata in self._written and not reference.expired() for _, reference in originals):
            self._written.clear()
            said, self._said = self._said, _nothing
            said(WORDS)
        mine = own(given)
        copies = list(_tensors(mine))
        self._copied[batch] = [(reference, copy, copy._version) for (_, reference), copy in zip(originals, copies, strict=False)]
        return mine

    def forget(self) -> None:
        """What ran was no step, and the loader gives its items again."""
        self._copied, self._written = {}, {}

    def ran(self, batch: int) -> None:
        for reference, copy, version in self._copied.pop(batch, ()):
            if copy._version != version and self._said is not _nothing:
                self._written[reference.cdata] = reference
        if len(self._written) > 1024:
            self._written = {key: reference for key, reference in self._written.items() if not reference.expired()}


def _nothing(_words: str) -> None:
    pass


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield from [value] * (value.layout is torch.strided and not value.is_meta)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
