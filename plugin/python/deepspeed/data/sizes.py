# SPDX-License-Identifier: Apache-2.0
"""The sizes of a step's micro-batches, as ranks that read data see them, and how ranks agree on them.

size_of = size_function("tokens")                    # or "my_data:length"
mine = seen_by(size_of, items)                       # on a rank that reads; Seen() elsewhere
sizes = agreed(everyones(mine))                      # the same on every rank, or the same OstinatoError
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from ..errors import OstinatoError

TOKENS = "tokens"
MOST = 2**50  # of a size, so that what it multiplies stays within 64 bits


def size_function(name: str) -> Callable[[Any], Any]:
    """The function that "sizes" in the section names. Raises OstinatoError where it cannot be found."""
    if name == TOKENS:
        return tokens
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise OstinatoError(
            f'"sizes" in the "ostinato" section is "{name}": use "tokens", or name a function as "module:function"'
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OstinatoError(f'"sizes" in the "ostinato" section is "{name}": {error}') from None
    if not callable(found):
        raise OstinatoError(
            f'"sizes" in the "ostinato" section is "{name}", which is a {type(found).__name__}, not a function'
        )
    return found


def tokens(item) -> int:
    """Samples times length of the first input, including padding: its first two dimensions."""
    inputs = item[0]
    first = inputs if torch.is_tensor(inputs) else inputs[0]
    if not torch.is_tensor(first) or first.dim() == 0:
        raise OstinatoError(
            'the first input of a micro-batch is not a tensor with dimensions: name your own function instead of "tokens"'
        )
    return math.prod(first.shape[:2])


@dataclass(frozen=True)
class Seen:
    """What one rank saw: sizes, or why there are none; neither on a rank that reads nothing."""

    sizes: tuple[float, ...] = ()
    error: str = ""
    ended: bool = False  # there is no further step


def seen_by(size_of: Callable[[Any], Any], items: Sequence) -> Seen:
    """The size of each item, or what is wrong with the first wrong one."""
    sizes = []
    for number, item in enumerate(items):
        try:
            sizes.append(_checked(size_of(item)))
        except Exception as error:  # the user's function, on the user's data
            kind = "" if isinstance(error, OstinatoError) else f"{type(error).__name__}: "
            return Seen(error=f"the size of micro-batch {number}: {kind}{error}")
    return Seen(tuple(sizes))


def _checked(size: Any) -> float:
    if torch.is_tensor(size) and size.numel() == 1:
        size = size.item()
    if isinstance(size, bool) or not isinstance(size, Real):
        raise OstinatoError(f"a {type(size).__name__} is not a number")
    number = float(size)
    if not 0 < number <= MOST:  # also refuses NaN
        raise OstinatoError(f"{size} must be above 0 and at most 2^50")
    return number


def agreed(everyone: Sequence[Seen]) -> tuple[float, ...]:
    """The sizes that all reading ranks have seen. Raises the same on every rank: StopIteration where the data of one
    have ended, OstinatoError where one has no sizes, or two differ."""
    for rank, seen in enumerate(everyone):
        if seen.error:
            raise OstinatoError(f"pipeline rank {rank}: {seen.error}")
    if any(seen.ended for seen in everyone):
        raise StopIteration
    reading = [(rank, seen.sizes) for rank, seen in enumerate(everyone) if seen.sizes]
    first, sizes = reading[0]
    for rank, other in reading[1:]:
        for number, (a, b) in enumerate(zip(sizes, other, strict=True)):
            if a != b:
                raise OstinatoError(
                    f"micro-batch {number} has size {a:g} on pipeline rank {first} and {b:g} on pipeline rank {rank}: both must read "
                    "the same items in the same order"
                )
    return sizes
