# SPDX-License-Identifier: Apache-2.0
"""Cuts the inputs of a step into micro-batches, and holds them while it runs.

micro_batches(tokens, 4, "inputs")                # four equal parts of a tensor along dimension 0
micro_batches((tokens, labels), 4, "inputs")      # also within tuples, NamedTuples and dictionaries of one batch
micro_batches([a, b, c, d], 4, "inputs")          # a list is already cut
micro_batches((tokens, [mask] * 4), 4, "inputs")  # here each micro-batch takes the whole mask

batches = Batches(["embedding"], {"mask"}, 4)
with batches.held(tokens, targets, {"mask": mask}):
    batches.inputs("embedding", 0), batches.targets[0], batches.keywords[0]
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from ostinato.errors import Error, counted

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class BatchError(Error, ValueError):
    """Inputs or targets that do not fit the plan; `str()` says which and why."""


class Batches:
    """What a call is given, by micro-batch. takers: the stages that take inputs. names: the keyword arguments that
    layers take; None: any."""

    def __init__(self, takers: Sequence[str], names: set[str] | None, count: int):
        self._takers, self._names, self._count = takers, names, count
        self._clear()

    def _clear(self) -> None:
        self._inputs: dict[str, list] = {}
        self.targets: list = []
        self.keywords: list[dict[str, Any]] = []

    @contextmanager
    def held(
        self,
        inputs: Any,
        targets: Any,
        keywords: Mapping[str, Any],
        apart: Callable[[Any], Any] = lambda value: value,
        named_apart: Callable[[Any], Any] = lambda value: value,
    ) -> Iterator[None]:
        """Around a run, so that nothing stays in memory until the next one. `apart` of each micro-batch is kept, and
        `named_apart` of its keywords. Raises BatchError."""

        def cut(value: Any, what: str, apart: Callable[[Any], Any] = apart) -> list:
            return list(map(apart, micro_batches(value, self._count, what)))

        try:
            self._inputs = {
                name: cut(value, "inputs") for name, value in by_stage(inputs, self._takers).items()
            }
            self.targets = cut(targets, "targets")
            self._check_keywords(inputs, keywords)
            self.keywords = cut(keywords, "what the stages are given by name", named_apart)
            yield
        finally:
            self._clear()

    def inputs(self, stage: str, micro_batch: int) -> Any:
        """None: not given on this rank."""
        of_stage = self._inputs.get(stage)
        return None if of_stage is None else of_stage[micro_batch]

    def _check_keywords(self, inputs: Any, keywords: Mapping[str, Any]) -> None:
        """Tensors that are cut one by one and differ along dimension 0 would be a table of positions that is cut as
        if it held a batch."""
        if self._names is not None and (unknown := sorted(keywords.keys() - self._names)):
            raise BatchError(f"no layer of the chain takes an argument {unknown[0]!r}")
        if keywords and not isinstance(inputs, Mapping):  # inputs by stage are cut stage by stage
            given = {"inputs": inputs, **keywords}
            _check_sizes(list(_cut_tensors(given)), self._count, "what the stages are given")


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


def as_arguments(value: Any) -> tuple:
    """The arguments for a module: a NamedTuple is one argument, as model(batch) takes it."""
    return value if type(value) is tuple else (value,)


def leaves(value: Any) -> Iterator[Any]:
    """What tuples, lists and dictionaries hold: in the same order on ranks that fill a dictionary in different ones."""
    if isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            yield from leaves(value[name])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


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
    """A stage may change its micro-batch in place: that does not change the rest, as it would with views."""
    return part if part.requires_grad else part.data


def _like(value: Any, items: list) -> Any:
    """Like `value` (a tuple, NamedTuple or dictionary), with these items."""
    if isinstance(value, Mapping):
        return dict(zip(value, items, strict=True))
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
