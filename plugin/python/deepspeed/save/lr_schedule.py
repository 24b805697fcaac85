# SPDX-License-Identifier: Apache-2.0
"""The learning rate schedule in a checkpoint of another placement.

with schedule.of_same_groups(engine, folder, held, alone):
    engine.load_checkpoint(...)          # without the optimizer's state

DeepSpeed reads it from the rank's file. Where ranks have different parameter groups (one for each layer), that file may
hold the rates of another rank's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.errors import counted
from ostinato.groups import everyones

from ..errors import OstinatoError
from ..upstream import Engine
from .checkpoint import held_in, recorded
from .seal import replaced

RATES = "base_lrs"  # of torch's schedules: the rate of each group


@contextmanager
def of_same_groups(
    engine: Engine, folder: Path | None, held: dict[str, Any], alone: dict[str, Any]
) -> Iterator[None]:
    """Around loading. `folder`: None where the optimizer's state is loaded, which is checked against its groups, or of a
    universal checkpoint. `held`: what ranks hold now. `alone`: what they hold in DeepSpeed's partition. All ranks must enter
    it. Raises OstinatoError on each where one would get the rates of other groups; all else is loaded then."""
    schedule = engine.lr_scheduler
    if schedule is None or folder is None or held == _held_by_writers(folder, alone):
        yield
        return
    read: list[dict] = []
    with replaced(schedule, "load_state_dict", read.append):
        yield
    rates = everyones((_rates(read[0]) if read else None, _rates(schedule)))
    if any(saved != rates[0][0] for saved, _ in rates) and any(saved != own for saved, own in rates):
        raise OstinatoError(
            f"{folder} has a learning rate schedule for different parameter groups on each rank, and layers have moved: "
            "load_checkpoint(..., load_lr_scheduler_states=False)"
        )
    for rank, (saved, own) in enumerate(rates):  # equal ones on all ranks, but now a rank has other groups
        if saved is not None and own is not None and len(saved) != len(own):
            raise OstinatoError(
                f"{folder} has a learning rate schedule for {counted(len(saved), 'parameter group')}, and rank {rank} has "
                f"{len(own)}: load_checkpoint(..., load_lr_scheduler_states=False)"
            )
    for state in read:
        schedule.load_state_dict(state)


def _rates(of: Any) -> list[float] | None:
    """Of a schedule or its state; of SequentialLR's or ChainedScheduler's, those of the first in it."""

    def named(name: str, default: Any) -> Any:
        return of.get(name, default) if isinstance(of, dict) else getattr(of, name, default)

    inner = (_rates(one) for one in named("_schedulers", ()))
    return named(RATES, None) or next(filter(None, inner), None)


def _held_by_writers(folder: Path, alone: dict[str, Any]) -> dict[str, Any]:
    record = recorded(folder)
    return alone if record is None else held_in(record)
