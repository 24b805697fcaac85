# SPDX-License-Identifier: Apache-2.0
"""The parameter groups that a user made before the layers moved, kept right when they do.

deepspeed.initialize() takes an optimizer, or model_parameters (parameters, or dictionaries of them with options). Those that
are lists hold parameters of layers that this rank may lose. A moved parameter joins, on its new rank, the group with
the options that it had: the one at the same position, else the first that has them. A generator over model.parameters() needs
nothing: it is read after the move.
"""

from collections.abc import Iterable
from typing import Any

import torch
from ostinato.ranks.groups import everyones

from .errors import OstinatoError
from .upstream import Engine, Model


NAMES = "param_names"  # of a group, where an optimizer was given named parameters


class GroupMap:
    """The groups of one rank. Empty where DeepSpeed makes them itself."""

    def __init__(self, optimizer, model_parameters):
        self._optimizer = optimizer if hasattr(optimizer, "param_groups") else None
        self._groups = self._optimizer.param_groups if self._optimizer else _groups_in(model_parameters)
        self._of = {p: index for index, group in enumerate(self._groups) for p in group["params"]}
        self._put: dict[torch.Tensor, int | None] = {}

    @property
    def groups(self) -> list[dict]:
        return self._groups

    def options(self) -> list[str]:
        """Per group, as comparable() says."""
        return [comparable(group) for group in self._groups]

    def group_of(self, parameter: torch.Tensor) -> int | None:
        return self._of.get(parameter)

    def put(self, parameter: torch.Tensor, options: str, index: int) -> None:
        """Notes that `parameter`, which just arrived, belongs to that group of the rank it came from."""
        self._put[parameter] = position(options, index, self.options())

    def apply(self, model: Model, lost: set[torch.Tensor]) -> None:
        """Rewrites the groups in place: without the parameters that left, with those that arrived, in model order.

        Parameters that never belonged to the model stay at the end.
        """
        if not self._groups:
            return
        self._refuse_state()
        self._refuse_held()
        names = {p: name for name, p in model.named_parameters()}
        owner = {**self._of, **self._put}
        for index, group in enumerate(self._groups):
            others = [p for p in group["params"] if p not in names and p not in lost]
            theirs = dict(zip(group["params"], group.get(NAMES, ()), strict=False))
            group["params"][:] = [p for p in names if owner.get(p) == index] + others
            if NAMES in group:
                group[NAMES] = [names.get(p, theirs.get(p)) for p in group["params"]]

    def _refuse_state(self) -> None:
        if self._optimizer is not None and any(self._optimizer.state.values()):
            raise OstinatoError(
                "the optimizer already holds state for layers that the placement moves: load it from a checkpoint after "
                "deepspeed.initialize()"
            )


    def _refuse_held(self) -> None:
        """What it keeps of parameters beside its groups and their state: it would go on with those of layers that have left."""
        own = {"param_groups", "state", "defaults"}
        for name, value in vars(self._optimizer).items() if self._optimizer is not None else ():
            if name not in own and any(tensor in self._of for tensor in _tensors_in(value)):
                raise OstinatoError(
                    f"the {type(self._optimizer).__name__} keeps parameters beside its groups (\"{name}\"), and the placement moves layers: let it "
                    "find them in its groups in step(), or use a placement that moves none"
                )


class Snapshot:
    """The groups as they are now. DeepSpeed's optimizers put their own flat tensors into them, and its engine takes those without
    parameters from the list; restore() undoes that.
    """

    def __init__(self, optimizer, model_parameters):
        self._optimizer = optimizer if hasattr(optimizer, "param_groups") else None
        self._groups = self._optimizer.param_groups if self._optimizer else _groups_in(model_parameters)
        self._saved = [(group, group["params"], list(group["params"]), dict(group)) for group in self._groups]

    def restore(self) -> None:
        for group, members, parameters, options in self._saved:
            members[:] = parameters
            group.clear()
            group.update(options)
        self._groups[:] = [group for group, *_ in self._saved]
        if self._optimizer is not None:
            self._optimizer.state.clear()


def mark_left(parameters: Iterable[torch.Tensor]) -> None:
    """They were this rank's, and are another's now. DeepSpeed's tensors have marks likewise."""
    for parameter in parameters:
        parameter.ostinato_left = True  # type: ignore[attr-defined]  # a mark of our own


def refuse_left(optimizer: Any) -> None:
    """Of an optimizer before DeepSpeed wraps it, however it came to its parameters. All ranks must call it."""
    left = [p for group in optimizer.param_groups for p in group["params"] if hasattr(p, "ostinato_left")]
    found = everyones(len(left))
    if any(found):
        rank = next(rank for rank, count in enumerate(found) if count)
        raise OstinatoError(
            f"the {type(optimizer).__name__} of rank {rank} holds {found[rank]} parameters of layers that the placement has moved to other ranks, which would learn "
            "nothing there: give deepspeed.initialize() a list as model_parameters, and a function that makes an optimizer of what it is given, or the optimizer itself"
        )


def refuse_uneven(engine: Engine) -> None:
    """ZeRO sums the norms of gradients over the ranks of a pipeline group by group, and DeepSpeed drops groups without parameters: where
    ranks have different numbers of them, the step would never end. All ranks must call it.
    """
    if not engine.zero_optimization():
        return
    counts = everyones(len(engine.optimizer.param_groups))
    if (fewest := min(counts)) < max(counts):
        raise OstinatoError(
            f"rank {counts.index(fewest)} has parameters of {fewest} of the optimizer's groups under this placement, and rank "
            f"{counts.index(max(counts))} of {max(counts)}: ZeRO sums norms group by group over all of them, and DeepSpeed would wait for ever. "
            "Use another placement, one group, or no ZeRO"
        )


def comparable(group: dict) -> str:
    """What is set beside its parameters, comparable between ranks."""
    return exactly(sorted((key, value) for key, value in group.items() if key not in ("params", NAMES)))


def exactly(value: Any) -> str:
    """As repr(), but with every element of a tensor and every digit."""
    if isinstance(value, torch.Tensor):
        return repr((value.dtype, value.shape, value.tolist()))
    if isinstance(value, dict):
        return repr([(key, exactly(item)) for key, item in value.items()])
    if isinstance(value, tuple | list):
        return repr([type(value), *map(exactly, value)])
    return repr(value)


def position(options: str, index: int, have: list[str]) -> int | None:
    """Where a parameter of group `index` with these options belongs among groups with the options `have`."""
    if index < len(have) and have[index] == options:
        return index
    return have.index(options) if options in have else None


def _tensors_in(value) -> list[torch.Tensor]:
    held = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else [value]
    inside = [t for part in held if isinstance(part, list | tuple | set) for t in part]
    return [t for t in (*held, *inside) if isinstance(t, torch.Tensor)]


def _groups_in(model_parameters) -> list[dict]:
    """The groups of an argument that was read before the layers moved; [] where it is None or read later."""
    if not isinstance(model_parameters, list):
        return []
    if model_parameters and isinstance(model_parameters[0], dict):
        return [group for group in model_parameters if isinstance(group.get("params"), list)]
    return [{"params": model_parameters}]
