# SPDX-License-Identifier: Apache-2.0
"""A plan for every step, where micro-batches differ in size ("sizes" in the section).

    steps = StepPlans(group, placement, profile, size=0, keep_order=False, effort=None, planner=0)
    program = steps.next(seen, step=1)      # on all ranks of the pipeline; seen: by those that read data (sizes.py)

Ranks that read data share the sizes. The first of them (`planner`) searches, and sends the plan as text
(ostinato-plan/1). Every rank checks it, lowers it, and proves the program free of deadlock.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist
from ostinato.core import Placement, Profile, search_sizes
from ostinato.errors import Error
from ostinato.groups import everyones
from ostinato.sizes import sized

from ..section import plans
from ..errors import OstinatoError, Unsupported
from .sizes import Seen, agreed

EFFORT = 15  # percent of the usual work of a search: about 2 ms of one core


@dataclass(frozen=True)
class Planned:
    """What one step was planned to take, in nanoseconds; `one_f_one_b`: 1F1B in the order given, 0 where it is
    not known; `planning`: wall clock of this rank, from having its data to having the program.
    """

    plan_sha256: str
    makespan: int
    lower_bound: int
    one_f_one_b: int
    planning: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


def refuse(program, stages: list[plans.Stage]) -> None:
    """Raises Unsupported for the first feature of `program` that does not work where each step gets its own
    plan."""
    if not plans.trains(program):
        raise Unsupported('"sizes" is for training, but this plan has forwards only: remove "sizes"')
    if plans.copies_of(stages) > 1:
        raise Unsupported(
            '"sizes" does not work with a placement that runs the model in two directions: use one with a single direction'
        )
    if sharded := [program.stages[stage.index].name for stage in stages if stage.sharded]:
        raise Unsupported(
            f'"sizes" does not work with stages over several ranks ("{sharded[0]}"): give each stage one device'
        )
    if not plans.is_chain(stages):
        raise Unsupported('"sizes" does not work with models that branch: remove it')


class StepPlans:
    """Of one engine, and so of one pipeline. `placement`: its text; `profile`: of the model, "" where there
    is none; `size`: of the micro-batch that the placement describes; 0: as the profile says, else the mean of
    the first step; `planner`: pipeline rank. All ranks of the pipeline make one, and make the same calls.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        placement: str,
        profile: str,
        size: float,
        keep_order: bool,
        effort: int | None,
        planner: int,
    ):
        self._group = group
        self._placement = Placement.from_text(placement)
        self._lowering = plans.compiled().StepPlacement(placement)
        self._profile = Profile.from_text(profile) if profile else None
        self._size = size or (self._profile.to_dict().get("tokens", 0) if self._profile else 0)
        self._keep_order, self._effort, self._planner = keep_order, effort or EFFORT, planner
        self.last: Planned | None = None

    def next(self, mine: Seen, step: int):
        """The program of the next step. Raises the same OstinatoError on every rank."""
        begin = time.perf_counter_ns()
        sizes = agreed(everyones(mine, self._group))
        said: list[Any] = [self._search(sizes) if dist.get_rank(self._group) == self._planner else None]
        dist.broadcast_object_list(said, dist.get_global_rank(self._group, self._planner), group=self._group)
        plan, why_not = said[0]
        if why_not:
            raise OstinatoError(
                f"step {step}: found no plan for micro-batches of sizes {', '.join(f'{size:g}' for size in sizes)}: {why_not}"
            )
        program = self._lowering.lower(plan)
        took = time.perf_counter_ns() - begin
        usual = next((time for _, time, _ in program.beside), 0)
        self.last = Planned(program.plan_sha256, program.makespan, program.lower_bound, usual, took)
        return program

    def _search(self, sizes: Sequence[float]) -> tuple[str, str]:
        """The plan, or why there is none. Equal sizes give equal plans: the search limits its work, not its time."""
        try:
            self._size = self._size or statistics.fmean(sizes)
            batches = sized(self._placement, sizes, self._size, self._profile)
            return search_sizes(
                self._placement, batches, keep_order=self._keep_order, effort=self._effort
            ).text, ""
        except Error as error:
            return "", str(error)
