# SPDX-License-Identifier: Apache-2.0
"""Arguments of the Python functions, as the core takes them: each is checked here, or typed as on the command line and
checked by what reads that.

>>> typed("time_limit", 2.5), typed("device_memory", 1024), typed("static", [1, 2])
('2.5', '1024B', '1,2')
>>> whole("micro_batches", 8)
8
>>> check_counts(devices=4)
>>> check_from_0(layers=0)
>>> check_from_1(micro_batches=1)
>>> check_flags(inference=True)
>>> seconds(10)
10.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from operator import index
from os import PathLike
from typing import Any

from ostinato.errors import UsageError

# What the core keeps of numbers with a fraction, where that is not 1; 0 often means none, or free.
LEAST = {"bandwidth": 1e-9} | dict.fromkeys(
    ("time_limit", "robust", "jitter", "unequal", "transfer_factor"), 1e-6
)


def typed(key: str, value: Any) -> str:
    """As it would be typed on the command line. Raises UsageError for what would round to 0 there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):  # numpy's, too
        return f"{int(value)}{'B' if key == 'device_memory' else ''}"
    if isinstance(value, Real):
        least = LEAST.get(key, 1)
        if 0 < float(value) < least:
            raise UsageError(f"{key} is {value}; the least above 0 is {typed(key, least)}")
        return f"{float(value):.9f}".rstrip("0").rstrip(".")
    if (
        isinstance(value, Sequence) and not isinstance(value, str | bytes) or hasattr(value, "tolist")
    ):  # numpy's arrays
        return ",".join(typed(key, one) for one in value)
    return str(value)


def whole(name: str, count: Any) -> int:
    """Raises UsageError for what is no whole number, as True is none."""
    try:
        if not isinstance(count, bool):
            return index(count)
    except TypeError:
        pass
    raise UsageError(f"{name} is {count!r}; it must be a whole number")


def check_counts(bits: int = 31, **counts: int) -> None:
    """Raises UsageError for one that no integer of the core holds."""
    for name, count in counts.items():
        if not -(2**bits) <= whole(name, count) < 2**bits:
            raise UsageError(f"{name} is {count}; the largest is {2**bits - 1}")


def check_from_0(bits: int = 31, **counts: int) -> None:
    """Also for one below 0."""
    _check_from(0, bits, counts)


def check_from_1(**counts: int) -> None:
    """Also for one below 1."""
    _check_from(1, 31, counts)


def _check_from(least: int, bits: int, counts: Mapping[str, int]) -> None:
    check_counts(bits, **counts)
    for name, count in counts.items():
        if count < least:
            raise UsageError(f"{name} needs a whole number from {least}, got {count}")


def check_flags(**flags: Any) -> None:
    """Raises UsageError for one that is neither True nor False, numpy's included."""
    for name, flag in flags.items():
        if type(flag).__name__ not in ("bool", "bool_"):
            raise UsageError(f"{name} is {flag!r}; it must be True or False")


def seconds(time_limit: Any) -> float:
    """Raises UsageError for what is no limit."""
    try:
        limit = float(time_limit)
    except (TypeError, ValueError):
        limit = -1
    if not 0 <= limit <= 100_000_000:
        raise UsageError(f'time_limit needs a decimal number from 0 to 100000000, got "{time_limit}"')
    return limit


def core_of(given: Any, kind: Any) -> Any:
    """What _search takes for an object of `kind`; a path, as the commands take, is none."""
    if not isinstance(given, kind):
        a_path = (
            f": {kind.__name__}.from_file({given!r}) reads one"
            if isinstance(given, str | PathLike) and hasattr(kind, "from_file")
            else ""
        )
        raise UsageError(f"this takes a {kind.__name__}, but got a {type(given).__name__}{a_path}")
    return given._core
