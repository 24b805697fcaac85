# SPDX-License-Identifier: Apache-2.0
"""Micro-batches that differ in size, as ostinato.core takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from ostinato import _search
from ostinato.arguments import check_counts, core_of, whole
from ostinato.errors import UsageError, counted
from ostinato.objects import Placement, Profile

# A size, {"size": ..., "times": {block: ns}, "memory": {block: bytes}}, or of sized().
MicroBatch = int | Mapping[str, Any] | _search.MicroBatch


def sized(
    placement: Placement, sizes: Sequence[float], size: float, profile: Profile | None = None
) -> list[_search.MicroBatch]:
    """Micro-batches for `search_sizes()`, in proportion to `size`. Where the `profile` was measured at
    several sizes, times follow those, in straight lines between them.
    """
    return _search.sized(
        core_of(placement, Placement), None if profile is None else core_of(profile, Profile), [*sizes], size
    )


def micro_batches_of(
    placement: Placement, sizes: Sequence[MicroBatch] | str | PathLike[str], of: int
) -> list[_search.MicroBatch]:
    if isinstance(sizes, str | PathLike):
        return _search.sizes_file(core_of(placement, Placement), fspath(sizes))
    if isinstance(sizes, Mapping):
        raise UsageError("sizes are a dict; they must be a list with one size, or one dict, a micro-batch")
    return [one if isinstance(one, _search.MicroBatch) else _micro_batch(placement, one, of) for one in sizes]


def _micro_batch(placement: Placement, one: int | Mapping[str, Any], of: int) -> _search.MicroBatch:
    given: Mapping[str, Any] = one if isinstance(one, Mapping) else {"size": whole("size", one)}
    if unknown := set(given) - {"size", "times", "memory"}:
        raise UsageError(
            f"a micro-batch has a size, times and memory, not {', '.join(map(repr, sorted(unknown)))}"
        )
    check_counts(63, size=of)
    check_counts(63, size=given.get("size", of))
    figures = [dict(given.get(key, {})) for key in ("times", "memory")]
    return _search.micro_batch(core_of(placement, Placement), given.get("size", of), of, *figures)


def bare_sizes(
    sizes: Sequence[int] | str | PathLike[str], of: int, micro_batches: int
) -> tuple[list[int], int]:
    if isinstance(sizes, str | PathLike):
        step, of = _search.bare_sizes(fspath(sizes))
    else:
        step = [whole("size", one) for one in sizes]
        if not step:
            raise UsageError("sizes are empty; a step has at least one micro-batch")
        for one in step:
            check_counts(63, size=one)
            if one < 0:
                raise UsageError(f"a size is {one}; it must be 0 or more")
        check_counts(63, size=of)
        if of < 0:
            raise UsageError(f"size is {of}; it must be 1 or more, or 0 for the profile's own")
    if micro_batches not in (0, len(step)):
        raise UsageError(
            f"micro_batches is {micro_batches}, but 'sizes' has {counted(len(step), 'entry')}; remove it"
        )
    return step, of
