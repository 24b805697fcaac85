# SPDX-License-Identifier: Apache-2.0
"""Schedules of learning rates, which a script makes over all groups of its optimizer. DeepSpeed then drops the groups
without parameters on a rank. Under a plan those may be groups that the rank has in DeepSpeed's own partition, such as
the biases and norms of a rank that holds the head alone. A schedule with a rate for each group would fail there, so
it steps with the groups that it was made for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..upstream import Engine

Dropped = list[tuple[int, dict]]  # groups without parameters, and their places among all


def dropped_groups(optimizer: Any, schedule: Any) -> Dropped:
    """Of what deepspeed.initialize() was given. A schedule that a function makes is made after DeepSpeed has dropped
    groups."""
    if schedule is None or callable(schedule):
        return []
    groups = getattr(optimizer, "param_groups", [])
    return [(place, group) for place, group in enumerate(groups) if not group["params"]]


@contextmanager
def over_all_groups(engine: Engine, dropped: Dropped) -> Iterator[None]:
    """While it lasts, the engine steps the script's schedule with these groups in their places."""
    schedule = engine.lr_scheduler
    if dropped and schedule is engine.client_lr_scheduler:
        engine.lr_scheduler = _OverAllGroups(schedule, engine.basic_optimizer, dropped)
    try:
        yield
    finally:
        engine.lr_scheduler = schedule


class _OverAllGroups:
    def __init__(self, schedule: Any, optimizer: Any, dropped: Dropped):
        self._schedule, self._optimizer, self._dropped = schedule, optimizer, dropped

    def step(self, *args: Any, **kwargs: Any) -> None:
        groups = self._optimizer.param_groups
        held = list(groups)
        for place, group in self._dropped:
            groups.insert(place, group)
        try:
            self._schedule.step(*args, **kwargs)
        finally:
            groups[:] = held
