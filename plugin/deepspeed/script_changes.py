# SPDX-License-Identifier: Apache-2.0
"""What a script changes on engine, optimizer and scheduler between deepspeed.initialize() and the first step, kept when "auto" makes
the engine anew.

    changes = ScriptChanges(engine)     # right after initialize()
    changes.note()                      # before the first step, while the engine is still the old one
    changes.repeat()                    # on the new one

Options of parameter groups (a learning rate) by group, hooks of the optimizer, the scheduler's state, attributes that the script gave
the engine, its optimizer or its scheduler (a step() around theirs, too), and what set_batch_fn() was given. Whoever holds the old optimizer, its
groups, or the scheduler, holds the new ones.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .errors import OstinatoError
from .parameter_groups import comparable, exactly, position
from .upstream import Engine

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
ITS_OWN = ("batch_fn",)  # DeepSpeed's attributes that a script sets
MADE_ANEW = ("optimizer", "lr_scheduler")  # with what they refer to
CONTENTS = (torch.Tensor, list, tuple, dict, set)
OF_A_RUN = {"outputs", "total_loss", "agg_loss", "agg_train_loss", "fwd_outputs", "loss"}  # of an evaluation before the first step


class ScriptChanges:
    def __init__(self, engine: Engine):
        self._engine = engine
        self._groups = list(_groups(engine))
        self._options, self._schedule = _options(engine), _schedule(engine)
        self._attributes = dict(vars(engine))
        self._hooks = _hooks(engine)
        self._parts = _parts(engine)
        self._had = [dict(vars(part)) for part in self._parts]

    def note(self) -> None:
        """Raises OstinatoError for what cannot be repeated."""
        engine, before = self._engine, self._options
        for name in MADE_ANEW:
            if getattr(engine, name, None) is not self._attributes.get(name):
                raise OstinatoError(
                    f'"auto": the script set engine.{name} after deepspeed.initialize(), and that engine is made anew for the plan: give it to '
                    "deepspeed.initialize(), or set it after the first train_batch()"
                )
        now = _options(engine)
        if len(now) != len(before):
            raise OstinatoError(
                f'"auto": the optimizer has {len(now)} parameter groups, and deepspeed.initialize() left {len(before)}: add groups before it, '
                "or after the first train_batch()"
            )
        same = object()
        self._changed = [
            {key: value for key, value in group.items() if exactly(old.get(key, same)) != exactly(value)}
            for old, group in zip(before, now, strict=True)
        ]
        self._set = [_set_since(before, vars(part)) for before, part in zip(self._had, self._parts, strict=True)]
        self._held = plain(engine.optimizer), getattr(plain(engine.optimizer), "param_groups", None)
        schedule = _schedule(engine)
        self._moved_on = schedule if exactly(schedule) != exactly(self._schedule) else None
        self._added = {name: {k: h for k, h in hooks.items() if k not in self._hooks.get(name, {})} for name, hooks in _hooks(engine).items()}
        given = {name: value for name, value in vars(engine).items() if name not in self._attributes and name not in OF_A_RUN}
        self._given = {name: value for name, value in given.items() if not name.startswith("_ostinato")}
        self._given |= {name: getattr(engine, name) for name in ITS_OWN if hasattr(engine, name)}

    def repeat(self, load: Callable[[], None] | None = None) -> None:
        """`load`: what the script had loaded into the old engine, which may have changed it afterwards."""
        engine = self._engine
        places = [self._place(group, index) for index, group in enumerate(_groups(engine))]
        if load is not None:
            load()
        for group, at in zip(_groups(engine), places, strict=True):
            group.update(copy.deepcopy(self._changed[at]) if at is not None else {})
        if self._moved_on is not None:
            engine.lr_scheduler.load_state_dict(self._moved_on)
        for name, hooks in self._added.items():
            getattr(plain(engine.optimizer), name, {}).update(hooks)
        self._hand_on_groups(places)
        for old, new, given in zip(self._parts, _parts(engine), self._set, strict=True):
            if old is not new:
                vars(new).update(given)
                _become(old, new)
        vars(engine).update(self._given)
        vars(engine)["_ostinato_parts"] = self._parts  # a scheduler's step() around the optimizer's has a weak reference

    def _place(self, group: dict, index: int) -> int | None:
        """Of the group that it was. DeepSpeed takes groups without parameters from an optimizer, so this rank may have others than before. Those
        of an optimizer that the script made are the same objects; those of the configuration's are known by their options.
        """
        same = [number for number, old in enumerate(self._groups) if old is group]
        at = same[0] if same else position(comparable(group), index, [comparable(options) for options in self._options])
        if at is None and any(self._changed):
            raise OstinatoError(
                '"auto": the script changed options of parameter groups before the first step, and this rank has a group under the plan that it '
                "did not have then: change them before deepspeed.initialize()"
            )
        return at

    def _hand_on_groups(self, places: list[int | None]) -> None:
        """The list of groups, and each of them, stay the objects that the script may hold, to set a rate in every step."""
        old, held = self._held
        new = plain(self._engine.optimizer)
        if old is new or held is None or "param_groups" not in vars(new):
            return
        groups, before, taken = new.param_groups, list(held), set()
        for index, at in enumerate(places):
            if at is None or at in taken or any(before[at] is group for group in groups):
                continue
            taken.add(at)
            before[at].clear()
            before[at].update(groups[index])
            groups[index] = before[at]
        held[:] = groups
        new.param_groups = held


def _become(old: Any, new: Any) -> None:
    """Whoever still holds `old` sees what `new` does."""
    old.__class__, old.__dict__ = new.__class__, new.__dict__


def _parts(engine: Engine) -> list[Any]:
    """What is made anew with the engine: its optimizer, those inside of DeepSpeed's wrappers, and its scheduler."""
    return [part for part in (*_inside(engine.optimizer), engine.lr_scheduler) if hasattr(part, "__dict__")]


def _set_since(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Attributes that are new, and others' new values (a step() that the script puts around the optimizer's), but for tensors and containers:
    a new optimizer has its own, for other parameters.
    """
    other = object()
    changed = {name: value for name, value in now.items() if before.get(name, other) is not value}
    return {name: value for name, value in changed.items() if name not in before or not isinstance(value, CONTENTS)}


def plain(optimizer: Any) -> Any:
    """The torch optimizer inside of DeepSpeed's wrappers."""
    return list(_inside(optimizer))[-1]


def _inside(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
        yield optimizer


def _hooks(engine: Engine) -> dict[str, dict]:
    optimizer = plain(engine.optimizer)
    return {name: dict(getattr(optimizer, name, {})) for name in STEP_HOOKS + STATE_HOOKS}


def _groups(engine: Engine) -> list[dict]:
    return getattr(engine.optimizer, "param_groups", [])


def _options(engine: Engine) -> list[dict]:
    return [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in _groups(engine)]


def _schedule(engine: Engine) -> dict | None:
    scheduler = engine.lr_scheduler
    return copy.deepcopy(scheduler.state_dict()) if hasattr(scheduler, "state_dict") else None
