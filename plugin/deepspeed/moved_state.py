# SPDX-License-Identifier: Apache-2.0
"""What a script has done to layers between PipelineModule() and now goes with those that move, or is refused by name.

    state = MovedState(group, ranks, rank, transfers, (left, arrived))      # descriptions of what leaves this rank and comes to it
    state.compare(digests)                                           # digests[r]: of the same, of rank r
    notes = state.exchange(specs, names, kept, built, shards, build) # raises the same OstinatoError on every rank
    ...                                                              # tensors travel
    state.give(built)

Each rank has described what leaves it and, as the constructors made them, what comes to it (layer_state). Where these are equal nothing is
sent. Where not, the rank that has the layer builds it once more: what differs from that was done by the script and travels; what
does not is what a constructor makes on that rank (its rank's number, say), and stays each rank's own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from ostinato.errors import counted
from ostinato.ranks.groups import everyones

from .errors import ANEW, OstinatoError
from .layer_state import Described, Place, describe, differing, give, made, taken
from .packing import CannotMove, Finder, words_of
from .random_state import random_state_kept
from .upstream import Model

ADVICE = "do that in the layer's constructor or after deepspeed.initialize(), or leave the layer on rank {} in the placement"


ENGINES = "deepspeed.runtime.engine"  # whose hooks are on the model of each engine
RUN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _in_order(places: set[Place]) -> list[Place]:
    """What is wrong with the make-up of a layer first: the rest follows from it."""
    return sorted(places, key=lambda place: (place.kind != "make-up", place.name != "class", place))


class MovedState:
    """Of one rank. `transfers`: (unit, from, to) as in rebuild; `ranks`: global ranks by pipeline rank."""

    def __init__(self, group, ranks: list[int], rank: int, transfers: list[tuple[str, int, int]], own: tuple[Described, Described]):
        self._group, self._ranks, self._rank, self._transfers, self._own = group, ranks, rank, transfers, own
        self._values: dict[str, dict] = {}  # by unit that arrives here
        self._described: list[tuple[Described, Described]] = []
        self._changed: dict[str, set[Place]] = {}

    def compare(self, digests: list[tuple[dict[str, str], dict[str, str]]]) -> None:
        """Finds what differs; only of such layers descriptions travel. All ranks must call it."""
        units = {u for u, source, target in self._transfers if digests[source][0][u] != digests[target][1][u]}
        if not units:
            return
        mine = tuple({unit: facts for unit, facts in described.items() if unit in units} for described in self._own)
        self._described = everyones(mine, self._group)
        self._transfers = [transfer for transfer in self._transfers if transfer[0] in units]
        for unit, source, target in self._transfers:
            places = differing(self._described[source][0][unit], self._described[target][1][unit])
            self._changed.setdefault(unit, set()).update(places)

    def exchange(self, specs: list, names: list, kept: dict, built: dict, shards: dict, build: Callable) -> list[str]:
        """What rank 0 is to say. `names`: units of the `specs`; `shards`: by unit, this rank's part; `build(unit)` makes it anew. All ranks
        must call it.
        """
        if not any(self._changed.values()):
            return []
        states, error = self._take(specs, names, kept, build)
        everyone = everyones((states, error), self._group)
        self._raise([error for _, error in everyone])
        finder, error = Finder(), ""
        for unit, source in ((unit, source) for unit, source, target in self._transfers if target == self._rank):
            state = everyone[source][0][unit]
            try:
                if state and unit in shards:
                    raise CannotMove(f"{next(iter(state)).words()}: its stage is on several ranks, and parts of layers cannot have it")
                self._values[unit] = made(built[unit], state, finder, _device())
            except CannotMove as why:
                error = error or self._refusal(unit, source, why)
        self._raise(everyones(error, self._group))
        return self._notes([states for states, _ in everyone])

    def give(self, built: dict[str, torch.nn.Module]) -> None:
        """Once the tensors are there."""
        for unit, values in self._values.items():
            give(built[unit], values)

    def _take(self, specs: list, names: list, kept: dict, build: Callable) -> tuple[dict, str]:
        """By unit that leaves this rank, what travels; why something cannot."""
        states: dict[str, Any] = {}
        error = ""
        for unit in dict.fromkeys(unit for unit, source, _ in self._transfers if source == self._rank):
            changed, states[unit] = _in_order(self._changed[unit]), {}
            if not changed:
                continue
            facts = self._described[self._rank][0][unit]
            if not isinstance(specs[names.index(unit)], torch.nn.Module):
                with random_state_kept():
                    by_script = set(differing(facts, describe(build(unit))))
                changed = [place for place in changed if place in by_script]
            try:
                self._check_make_up(unit, changed)
                states[unit] = taken(kept[unit], changed)
            except CannotMove as why:
                error = error or self._refusal(unit, self._rank, why)
        return states, error

    def _check_make_up(self, unit: str, changed: list[Place]) -> None:
        for place in (p for p in changed if p.kind == "make-up"):
            here = self._described[self._rank][0][unit].get(place, "none")
            there = next(self._described[t][1][unit].get(place, "none") for u, _, t in self._transfers if u == unit)
            raise CannotMove(f'{place.words()}: "{here}" where it is built with "{there}"')

    def _refusal(self, unit: str, source: int, why: CannotMove) -> str:
        target = next(self._ranks[t] for u, _, t in self._transfers if u == unit)
        return (
            f'layer "{unit}" moves from rank {self._ranks[source]} to rank {target}, and something was done to it since it was built that cannot '
            f"go with it: {why}. {ADVICE.format(self._ranks[source]).capitalize()}"
        )

    def _notes(self, states: list[Described]) -> list[str]:
        """Of what a constructor makes otherwise on another rank."""
        notes = []
        for unit, source, _ in self._transfers:
            places = [place for place in _in_order(self._changed[unit]) if place not in states[source][unit]]
            for place in places[:1] if places and places[0].kind == "make-up" else places:  # of other classes the rest follows
                notes.append(f'layer "{unit}": its constructor makes {place.words()} otherwise on its new rank than on rank {self._ranks[source]}')
        return list(dict.fromkeys(notes))

    @staticmethod
    def _raise(errors: list[str]) -> None:
        if found := [error for error in errors if error]:
            raise OstinatoError(found[0])


def _device() -> torch.device:
    from deepspeed.accelerator import get_accelerator

    return torch.device(get_accelerator().current_device_name())


def functions_changed(model: Model, names: list) -> str:
    """Why model.forward_funcs is not what PipelineModule made of its layers; "" where it is."""
    for hook in (hook for name in RUN_HOOKS for hook in vars(model).get(name, {}).values()):
        if getattr(hook, "__module__", "") == ENGINES:
            return f"this PipelineModule has an engine already, and the placement moves its layers: {ANEW}"
        return (
            f"{words_of(hook)} is a hook on the PipelineModule, which runs once for what a rank holds, and the placement gives ranks other "
            "stages, or several: register it on layers"
        )
    begin, functions = model._local_start, model.forward_funcs
    if len(functions) != model._local_stop - begin:
        return f"model.forward_funcs holds {counted(len(functions), 'layer')} where PipelineModule() made {model._local_stop - begin}: leave it as it is"
    for layer, function in enumerate(functions, begin):
        if not _is_own(model, model._layer_specs[layer], names[layer], function):
            return (
                f"layer {layer} was replaced since PipelineModule() made it (model.forward_funcs has {words_of(function)}), and layers move: "
                "replace it in the list that PipelineModule is given"
            )
    return ""


def _is_own(model: Model, spec, unit: str | None, function) -> bool:
    if unit is None:
        return function is spec
    module = model.get_submodule(unit)
    if "." in unit and spec.forward_fn is not None:
        return isinstance(function, partial) and function.func is spec.forward_fn and function.args == (module,)
    return function is module
