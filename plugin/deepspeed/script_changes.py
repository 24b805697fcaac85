# SPDX-License-Identifier: Apache-2.0
"""What a script changes on engine, optimizer and scheduler between deepspeed.initialize() and the first step, kept when "auto" makes
the engine anew.

    changes = ScriptChanges(engine)     # right after initialize()
    changes.note()                      # before the first step, while the engine is still the old one
    changes.repeat()                    # on the new one

Options of parameter groups (a learning rate) by group, hooks of the optimizer, the scheduler's state, attributes that the script gave
the engine, and what set_batch_fn() was given.
"""

import copy
from typing import Any

from .errors import OstinatoError
from .parameter_groups import comparable, exactly, position
from .upstream import Engine

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
ITS_OWN = ("batch_fn",)  # DeepSpeed's attributes that a script sets
MADE_ANEW = ("optimizer", "lr_scheduler")  # with what they refer to
OF_A_RUN = {"outputs", "total_loss", "agg_loss", "agg_train_loss", "fwd_outputs", "loss"}  # of an evaluation before the first step


class ScriptChanges:
    def __init__(self, engine: Engine):
        self._engine = engine
        self._groups = list(_groups(engine))
        self._options, self._schedule = _options(engine), _schedule(engine)
        self._attributes = dict(vars(engine))
        self._hooks = {name: dict(getattr(plain(engine.optimizer), name, {})) for name in STEP_HOOKS}

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
        schedule = _schedule(engine)
        self._moved_on = schedule if exactly(schedule) != exactly(self._schedule) else None
        hooks = {name: dict(getattr(plain(engine.optimizer), name, {})) for name in STEP_HOOKS}
        self._added = {name: {k: h for k, h in hooks[name].items() if k not in self._hooks[name]} for name in STEP_HOOKS}
        given = {name: value for name, value in vars(engine).items() if name not in self._attributes and name not in OF_A_RUN}
        self._given = {name: value for name, value in given.items() if not name.startswith("_ostinato")}
        self._given |= {name: getattr(engine, name) for name in ITS_OWN if hasattr(engine, name)}

    def repeat(self) -> None:
        engine = self._engine
        for index, group in enumerate(_groups(engine)):
            group.update(copy.deepcopy(self._changed_in(group, index)))
        if self._moved_on is not None:
            engine.lr_scheduler.load_state_dict(self._moved_on)
        for name, hooks in self._added.items():
            getattr(plain(engine.optimizer), name, {}).update(hooks)
        vars(engine).update(self._given)


    def _changed_in(self, group: dict, index: int) -> dict:
        """DeepSpeed takes groups without parameters from an optimizer, so this rank may have others than before. Those of an optimizer
        that the script made are the same objects; those of the configuration's are known by their options.
        """
        for old, changed in zip(self._groups, self._changed, strict=True):
            if old is group:
                return changed
        at = position(comparable(group), index, [comparable(options) for options in self._options])
        if at is not None:
            return self._changed[at]
        if any(self._changed):
            raise OstinatoError(
                '"auto": the script changed options of parameter groups before the first step, and this rank has a group under the plan that it '
                "did not have then: change them before deepspeed.initialize()"
            )
        return {}


def plain(optimizer: Any) -> Any:
    """The torch optimizer inside of DeepSpeed's wrappers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _groups(engine: Engine) -> list[dict]:
    return getattr(engine.optimizer, "param_groups", [])


def _options(engine: Engine) -> list[dict]:
    return [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in _groups(engine)]


def _schedule(engine: Engine) -> dict | None:
    scheduler = engine.lr_scheduler
    return copy.deepcopy(scheduler.state_dict()) if hasattr(scheduler, "state_dict") else None
