# SPDX-License-Identifier: Apache-2.0
"""From what a step is given to what each micro-batch takes.

micro_batches(tokens, 4, "inputs")                # four equal parts of a tensor along dimension 0
micro_batches((tokens, labels), 4, "inputs")      # of each tensor in tuples, NamedTuples and dictionaries
micro_batches([a, b, c, d], 4, "inputs")          # already cut
micro_batches((tokens, [mask] * 4), 4, "inputs")  # the mask is: each micro-batch takes all of one
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ostinato.errors import Error, counted

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class BatchError(Error, ValueError):
    """Inputs or targets that do not fit the plan; `str()` says which and why."""


def micro_batches(value: Any, count: int, what: str) -> list[Any]:
    """One entry a micro-batch; `count` times None for None. `what` names the argument in messages.

    Raises BatchError where it cannot be sure: tensors of one argument that differ along dimension 0 are not
    cut like one batch.
    """
    if value is not None and isinstance(value, PLAIN):
        raise BatchError(
            f"{what} is a {type(value).__name__}: give a tensor, a tuple of tensors, {_a_list(count)}"
        )
    _check_sizes(list(_cut_tensors(value)), count, what)
    return _cut(value, count, what)


def as_arguments(value: Any) -> tuple:
    """What a module is called with: a NamedTuple is one argument, as model(batch) takes it."""
    return value if type(value) is tuple else (value,)


def by_stage(inputs: Any, takers: Sequence[str]) -> dict[str, Any]:
    """What each stage of `takers`, those that take inputs, is given: a dictionary has it by their names."""
    if not isinstance(inputs, Mapping):
        return dict.fromkeys(takers, inputs)
    strangers = [name for name in inputs if name not in takers]
    if strangers:
        stages = ", ".join(f'"{name}"' for name in takers)
        raise BatchError(
            f"inputs is a dictionary, which has them by stage, and {strangers[0]!r} is no stage that takes inputs (only {stages} "
            "of this plan): give a model's arguments as a tuple, in the order of its forward; a list with a dictionary for each "
            "micro-batch reaches the stage as it is"
        )
    return dict(inputs)


def _a_list(count: int) -> str:
    return f"or a list with an entry for each of the {count} micro-batches"


def _cut_tensors(value: Any):
    """Those that have a batch in dimension 0, as far as anybody can see."""
    if torch.is_tensor(value) and value.dim() > 0:
        yield value
    elif isinstance(value, tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _cut_tensors(item)


def _check_sizes(tensors: list[torch.Tensor], count: int, what: str) -> None:
    shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
    if len({shape[0] for shape in shapes}) > 1:
        raise BatchError(
            f"{what} holds tensors of shapes {', '.join(map(str, shapes))}, which are not all cut along dimension 0 like one batch: "
            f"in place of what is not, give a list with an entry for each of the {count} micro-batches ([mask] * {count} where each "
            "takes all of it), or give all as such a list"
        )
    if shapes and shapes[0][0] % count:
        raise BatchError(
            f"{what} has shape {shapes[0]}, which {count} micro-batches do not divide along dimension 0: leave out a last batch that is "
            f"smaller (drop_last=True), {_a_list(count).removeprefix('or ')}"
        )


def _cut(value: Any, count: int, what: str) -> list[Any]:
    if isinstance(value, list):
        if len(value) != count:
            raise BatchError(
                f"{what} has a list of {counted(len(value), 'entry')}, and the plan has {counted(count, 'micro-batch')}"
            )
        return value
    if isinstance(value, tuple | Mapping):
        items = value.values() if isinstance(value, Mapping) else value
        parts = [_cut(item, count, what) for item in items]
        return [_like(value, [part[m] for part in parts]) for m in range(count)]
    if torch.is_tensor(value) and value.dim() > 0:
        return list(value.tensor_split(count))
    if torch.is_tensor(value) or isinstance(value, PLAIN):  # has nothing to cut
        return [value] * count
    raise BatchError(
        f"{what} holds a {type(value).__name__}, which may hold a batch: give {_a_list(count).removeprefix('or ')} in its place"
    )


def _like(value: Any, items: list) -> Any:
    """A tuple, NamedTuple or dictionary with these items."""
    if isinstance(value, Mapping):
        return dict(zip(value, items, strict=True))
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
