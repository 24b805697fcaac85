# SPDX-License-Identifier: Apache-2.0
"""Cuts the inputs of a step into micro-batches.

micro_batches(tokens, 4, "inputs")                # four equal parts of a tensor along dimension 0
micro_batches((tokens, labels), 4, "inputs")      # also within tuples, NamedTuples and dictionaries of one batch
micro_batches([a, b, c, d], 4, "inputs")          # a list is already cut
micro_batches((tokens, [mask] * 4), 4, "inputs")  # here each micro-batch takes the whole mask
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ostinato.errors import Error, counted

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class BatchError(Error, ValueError):
    """Inputs or targets that do not fit the plan; `str()` says which and why."""


def micro_batches(value: Any, count: int, what: str) -> list[Any]:
    """One entry per micro-batch; `count` times None for None. `what` names the argument in messages.

    Raises BatchError where the cut is not clear: tensors of one argument that differ along dimension 0 cannot
    all be cut like one batch.
    """
    if value is not None and isinstance(value, PLAIN):
        raise BatchError(
            f"{what} is a {type(value).__name__}: pass a tensor, a tuple of tensors, {_a_list(count)}"
        )
    _check_sizes(list(_cut_tensors(value)), count, what)
    return _cut(value, count, what)


def check_batch(values: Mapping[str, Any], count: int, what: str) -> None:
    """Raises BatchError where tensors that are cut one by one differ along dimension 0: a table of positions would
    be cut as if it held a batch."""
    _check_sizes(list(_cut_tensors(values)), count, what)


def as_arguments(value: Any) -> tuple:
    """The arguments for a module: a NamedTuple is one argument, as model(batch) takes it."""
    return value if type(value) is tuple else (value,)


def by_stage(inputs: Any, takers: Sequence[str]) -> dict[str, Any]:
    """The inputs of each stage in `takers`, the stages that take inputs: a dictionary has them by stage name."""
    if not isinstance(inputs, Mapping):
        return dict.fromkeys(takers, inputs)
    strangers = [name for name in inputs if name not in takers]
    if strangers:
        stages = ", ".join(f'"{name}"' for name in takers)
        raise BatchError(
            f"inputs is a dictionary, which must have inputs by stage, but {strangers[0]!r} is not a stage that takes inputs (in this plan: "
            f"{stages}): pass a model's arguments as a tuple, in the order of its forward, or as a list with a dictionary for each "
            "micro-batch"
        )
    return dict(inputs)


def _a_list(count: int) -> str:
    return f"or a list with an entry for each of the {count} micro-batches"


def _cut_tensors(value: Any):
    """Tensors that may have a batch in dimension 0."""
    if torch.is_tensor(value) and value.dim() > 0:
        yield value
    elif isinstance(value, tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _cut_tensors(item)


def _check_sizes(tensors: list[torch.Tensor], count: int, what: str) -> None:
    shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
    if len({shape[0] for shape in shapes}) > 1:
        raise BatchError(
            f"{what} holds tensors of shapes {', '.join(map(str, shapes))}, which cannot all be cut along dimension 0 like one batch: "
            f"replace those that should not by a list with an entry for each of the {count} micro-batches ([mask] * {count} if each "
            "takes the whole mask), or pass everything as such a list"
        )
    if shapes and shapes[0][0] % count:
        raise BatchError(
            f"{what} has shape {shapes[0]}, whose dimension 0 is not divisible into {count} micro-batches: drop a smaller last batch "
            f"(drop_last=True), or pass {_a_list(count).removeprefix('or ')}"
        )


def _cut(value: Any, count: int, what: str) -> list[Any]:
    if isinstance(value, list):
        if len(value) != count:
            raise BatchError(
                f"{what} has a list of {counted(len(value), 'entry')}, but the plan has {counted(count, 'micro-batch')}"
            )
        return value
    if isinstance(value, tuple | Mapping):
        items = value.values() if isinstance(value, Mapping) else value
        parts = [_cut(item, count, what) for item in items]
        return [_like(value, [part[m] for part in parts]) for m in range(count)]
    if torch.is_tensor(value) and value.dim() > 0:
        return [_alone(part) for part in value.tensor_split(count)]
    if torch.is_tensor(value) or isinstance(value, PLAIN):  # has nothing to cut
        return [value] * count
    raise BatchError(
        f"{what} holds a {type(value).__name__}, which may hold a batch: replace it by {_a_list(count).removeprefix('or ')}"
    )


def _alone(part: torch.Tensor) -> torch.Tensor:
    """A stage may change its micro-batch in place: that is no change of the others, as it would be of views."""
    return part if part.requires_grad else part.data


def _like(value: Any, items: list) -> Any:
    """Like `value` (a tuple, NamedTuple or dictionary), with these items."""
    if isinstance(value, Mapping):
        return dict(zip(value, items, strict=True))
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
