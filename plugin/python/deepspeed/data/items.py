# SPDX-License-Identifier: Apache-2.0
"""Items of a data loader that stay what they are while it reads on.

    items.append(own(next(loader)))      # a loader may write its next item where this one lies

DeepSpeed under 1F1B is done with an item when it reads the next. A plan reads on before, and would train on
what has been written since.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Made(NamedTuple):
    """What the script's batch_fn has made of an item: it is called once for each, as in 1F1B, however often
    the item is used."""

    value: Any


def made_once(batch_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """In its place."""
    return lambda item: item.value if isinstance(item, Made) else batch_fn(item) if batch_fn else item


def again(items: Iterable[Any], seconds: float = 0.0) -> Iterator[Made]:
    """What batch_fn has made, once more; a loss may write to its labels. `seconds`: that each takes to come."""
    for item in items:
        time.sleep(seconds)
        yield Made(own(item))


@contextmanager
def making_once(engine: Any) -> Iterator[None]:
    """While it lasts, the engine's batch_fn is that of made_once()."""
    batch_fn = engine.batch_fn
    engine.batch_fn = made_once(batch_fn)
    try:
        yield
    finally:
        engine.batch_fn = batch_fn


PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
GAPS = 16  # memory that a copy may take, in multiples of its numbers, so that it lies as its original does


def own(value: Any) -> Any:
    """A copy that shares no memory with it. Raises TypeError where an object in it cannot be copied."""
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
            f"a {type(value).__name__} cannot be kept while the loader reads on: {error}"
        ) from error


def _tensor(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides, in whose order a kernel may add."""
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
