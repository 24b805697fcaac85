# SPDX-License-Identifier: Apache-2.0
"""A plan for every step, where micro-batches differ in size ("sizes" in the section).

    steps = StepPlans(group, device, placement, costs, count=8, keep_order=False, effort=None, planner=0)
    program = steps.next(seen, step=1)      # on all ranks of the pipeline; seen: by those that read data (sizes.py)

Ranks that read tell the others what they have seen. The first of them (`planner`) searches and sends the plan as text
(ostinato-plan/1). Every rank checks it, lowers it, and proves the program free of deadlock.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from ostinato.core import Placement, search_sizes
from ostinato.errors import Error

from ..section import plans
from .costs import Costs
from ..errors import OstinatoError, Unsupported
from .sizes import Seen, agreed, length_of_words

EFFORT = 15  # percent of the usual work of a search: about 2 ms of one core

FOUND, NONE = 0, 1  # what the rank that searches sends: a plan, or why there is none


@dataclass(frozen=True)
class Planned:
    """Of one step. Nanoseconds; `one_f_one_b`: 1F1B in the order given, 0 where it is not known; `planning`: wall clock of this rank, from
    when it had its data until it had the program.
    """

    plan_sha256: str
    makespan: int
    lower_bound: int
    one_f_one_b: int
    planning: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


def refuse(program, stages: list[plans.Stage], plan: str) -> None:
    """Raises Unsupported for the first thing that steps of their own plans cannot keep of `program`, whose plan has the text `plan`."""
    if json.loads(plan).get("modes"):
        raise Unsupported('"sizes" does not work with a plan that chooses modes (--choose): write them into the blocks of the placement')
    if not plans.trains(program):
        raise Unsupported('"sizes" is for training, and this plan holds forwards only: leave it out')
    if plans.copies_of(stages) > 1:
        raise Unsupported('"sizes" does not work with a placement that runs the model in two directions: give one in one direction')
    if sharded := [program.stages[stage.index].name for stage in stages if stage.sharded]:
        raise Unsupported(f'"sizes" does not work with stages over several ranks ("{sharded[0]}"): give each stage one device')
    if not plans.is_chain(stages):
        raise Unsupported('"sizes" does not work with models that branch: leave it out')


class StepPlans:
    """Of one engine, and so of one pipeline. `placement`: its text; `costs`: of a micro-batch, by its size; `count`: micro-batches of a
    step; `planner`: pipeline rank. All ranks of the pipeline make one, and call it alike.
    """

    def __init__(
        self, group, device: torch.device, placement: str, costs: Costs, count: int, keep_order: bool, effort: int | None, planner: int
    ):
        self._group, self._device, self._count = group, device, count
        self._placement = Placement.from_text(placement)
        self._lowering = plans.compiled().StepPlacement(placement)
        self._costs = costs
        self._keep_order, self._effort, self._planner = keep_order, effort or EFFORT, planner
        self.last: Planned | None = None

    def next(self, mine: Seen, step: int):
        """The program of the next step. Raises the same OstinatoError on every rank."""
        begin = time.perf_counter_ns()
        sizes = agreed(self._everyones(mine))
        kind, text = self._planner_says(self._search(sizes) if dist.get_rank(self._group) == self._planner else None)
        if kind == NONE:
            raise OstinatoError(f"step {step}: no plan for micro-batches of sizes {', '.join(f'{size:g}' for size in sizes)}: {text}")
        program = self._lowering.lower(text)
        took = time.perf_counter_ns() - begin
        self.last = Planned(program.plan_sha256, program.makespan, program.lower_bound, program.one_f_one_b, took)
        return program

    def _everyones(self, mine: Seen) -> list[Seen]:
        words = torch.tensor(mine.words(self._count), dtype=torch.int64, device=self._device)
        gathered = [torch.empty_like(words) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(gathered, words, group=self._group)
        assert len(words) == length_of_words(self._count)
        return [Seen.of(row.tolist(), self._count) for row in gathered]

    def _search(self, sizes: Sequence[float]) -> tuple[int, str]:
        """The same for the same sizes: work is counted, and not time."""
        try:
            batches, of = self._costs.micro_batches(sizes)
            return FOUND, search_sizes(self._placement, batches, size=of, keep_order=self._keep_order, effort=self._effort).text
        except Error as error:
            return NONE, str(error)

    def _planner_says(self, said: tuple[int, str] | None) -> tuple[int, str]:
        """What the rank that searches says, on every rank."""
        payload = said[1].encode() if said else b""
        head = torch.tensor([said[0] if said else 0, len(payload)], dtype=torch.int64, device=self._device)
        source = dist.get_global_rank(self._group, self._planner)
        dist.broadcast(head, source, group=self._group)
        kind, length = head.tolist()
        body = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if said else torch.empty(length, dtype=torch.uint8)
        body = body.to(self._device)
        dist.broadcast(body, source, group=self._group)
        return kind, bytes(body.cpu().numpy()).decode()
