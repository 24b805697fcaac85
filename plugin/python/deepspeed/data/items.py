# SPDX-License-Identifier: Apache-2.0
"""Keeps items of a data loader unchanged while it reads on.

    items.append(own(next(loader)))      # a loader may write its next item over this one

Under 1F1B DeepSpeed is done with an item when it reads the next. A plan reads on earlier, and would train on
what the loader has written since.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Made(NamedTuple):
    """The result of the script's batch_fn for an item: batch_fn is called once per item, as in 1F1B, however
    often the item is used."""

    value: Any


def made_once(batch_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """A batch_fn that leaves a Made item as it is."""
    return lambda item: item.value if isinstance(item, Made) else batch_fn(item) if batch_fn else item


def again(items: Iterable[Any], seconds: float = 0.0) -> Iterator[Made]:
    """Copies of items that batch_fn has made, as a loss may write to its labels. `seconds`: to wait for each."""
    for item in items:
        time.sleep(seconds)
        yield Made(own(item))


class Following:
    """The items, then the script's iterator's, by next() alone, as DeepSpeed reads it: iter() of a loader
    that is its own iterator may start over."""

    def __init__(self, items: Iterable[Any], iterator: Any):
        self._items, self._iterator = deque(items), iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._items.popleft() if self._items else next(self._iterator)


@contextmanager
def making_once(engine: Any) -> Iterator[None]:
    """Gives the engine the batch_fn of made_once(), and restores its own on exit."""
    batch_fn = engine.batch_fn
    engine.batch_fn = made_once(batch_fn)
    try:
        yield
    finally:
        engine.batch_fn = batch_fn


PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
GAPS = 16  # memory that a copy may take, in multiples of its elements, to have the strides of its original


def own(value: Any) -> Any:
    """A copy that shares no memory with `value`. Raises TypeError where an object in it cannot be copied."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(own, value))
    if type(value) in (list, tuple):
        return type(value)(map(own, value))
    if type(value) is dict:
        return {key: own(part) for key, part in value.items()}
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"cannot copy a {type(value).__name__}, which must be kept while the loader reads on: {error}"
        ) from error


def _tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Keeps the strides, as a kernel may add in their order."""
    reach = (
        1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if _strided(tensor)
        else 0
    )
    if not 0 < tensor.numel() or not 0 < reach <= GAPS * tensor.numel():
        return tensor.clone()
    return tensor.as_strided((reach,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def _strided(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
