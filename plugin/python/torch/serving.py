# SPDX-License-Identifier: Apache-2.0
"""Runs an endless stream of requests through a plan of forwards, for Pipeline.serve().

A run of the executor has many slots: the plan with its repetend repeated. A slot takes the next request when its
first stage reaches it, so requests come in while earlier ones are in flight, in the plan's order, which was shown
free of deadlock. A slot without a request passes empty: a stage's outputs carry the number of their request, and
no stage computes an empty slot. The front, the rank that draws requests, lets empty slots in only while they are
needed to finish what is in flight; then it waits.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from ostinato.nn import ShardedLogits
from ostinato.groups import make_group
from ostinato.ranks.names import agreed
from torch.distributed.distributed_c10d import _get_default_store

from .batches import BatchError, as_arguments, by_stage
from .checks import PipelineError
from .requests import NOTHING, Intake, lead_of

SLOTS = 512  # of a run; between two runs the pipeline empties if a rank has more than one stage
MOST_SLOTS = 65_536  # instructions of all are in memory
NO_LIMIT = timedelta(days=10_000)

Answer = Callable[[int, Any], None]


class Serving:
    """This rank's part; all ranks must make it. `program`: with many slots. `modules`: by stage. `ranks`: global,
    by device, of the group `pipeline`.
    """

    def __init__(
        self,
        program,
        rank: int,
        ranks: list[int],
        pipeline,
        modules: dict[int, torch.nn.Module],
        device,
        dynamic: bool,
    ):
        self.program, self._rank, self._ranks, self._pipeline = program, rank, ranks, pipeline
        self.modules, self._device = modules, device
        self._readers = [index for index in modules if not program.stages[index].inputs]
        self._ends = [index for index in modules if not program.stages[index].outputs]
        self._lead = lead_of(program, dynamic)
        self._dynamic = dynamic
        self.front, self._group = self._find_front()
        store: Any = _get_default_store() if len(ranks) > 1 else None
        self._store: Any = None if store is None else store.clone()
        # By stage: outputs to pass on for an empty slot, where shapes are fixed.
        self._last: dict[int, tuple] = {}

    def _find_front(self) -> tuple[int, dist.ProcessGroup | None]:
        """The front's pipeline rank, and the group of all ranks that take inputs, if there are several; these
        ranks make it."""
        front = self.program.front_stage(self._dynamic)
        if front < 0:
            raise ValueError(
                "no stage of the plan takes every request before the other ranks need it: search another plan"
            )
        first = self.program.stages[front].ranks[0]
        members = {rank for stage in self.program.stages if not stage.inputs for rank in stage.ranks}
        if len(members) == 1:
            return first, None
        return first, make_group([self._ranks[r] for r in sorted(members)], self._pipeline, backend="gloo")

    def begin(self, requests: Any, answer: Answer | None, patience_s: float) -> None:
        """To be called on every rank; `requests` is used on the front, `answer` on ranks with a stage that feeds
        no other."""
        self._answer, self._name, self._runs = answer, f"ostinato/{agreed('serve', self._ranks)}", count()
        self.count = 0
        # By request: outputs so far of this rank's stages that feed no other.
        self._parts: dict[int, dict[int, Any]] = {}
        self._intake: Any = None  # Intake, on ranks that read
        if self._readers:
            self._intake = Intake(
                requests,
                self._lead,
                len(self._readers),
                patience_s,
                self._ranks[self.front],
                self._group,
                self._device,
            )

    def another_run(self) -> bool:
        """Waits until the front tells all ranks that there is a request for another run. False: no more will come."""
        go = False
        try:
            if self._rank == self.front:
                go = self._intake.wait()
        finally:  # where it raises, too: nothing tells the ranks that wait here, and nothing is in flight
            if self._store is not None:
                go = self._agreed(f"{self._name}/{next(self._runs)}", go)
        if self._intake is not None:
            self._intake.begin()
        return go

    def _agreed(self, key: str, go: bool) -> bool:
        here = self.program.micro_batches
        if self._rank == self.front:
            self._store.set(key, f"{int(go)} {here}")
            return go
        self._store.wait([key], NO_LIMIT)
        goes_on, slots = map(int, self._store.get(key).split())
        if self._store.add(f"{key}/read", 1) == len(self._ranks) - 1:
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/read")
        if slots != here:
            raise PipelineError(
                f"serve() has slots={here} on rank {self._rank}, and {slots} on rank {self.front}"
            )
        return bool(goes_on)

    def forward_of(self, index: int) -> Callable:
        """The function that the executor calls for a stage."""
        stage = self.program.stages[index]

        def forward(slot: int, inputs: tuple | None):
            number, arguments = self._taken(stage.name, slot) if inputs is None else opened(inputs)
            if number == NOTHING:
                return self._marked(number, self._last.get(index, ())) if stage.outputs else ()
            self.count = max(self.count, number + 1)
            with torch.no_grad():
                outputs = self.modules[index](*arguments)
            if not stage.outputs:
                self._finished(
                    index, number, outputs.whole() if isinstance(outputs, ShardedLogits) else outputs
                )
                return ()
            outputs = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
            if not self._dynamic:
                self._last[index] = outputs
            return self._marked(number, outputs)

        return forward

    def _marked(self, number: int, outputs: tuple) -> tuple:
        """In the form that opened() takes."""
        return (*outputs, torch.tensor([number, len(outputs)], device=self._device))

    def _taken(self, name: str, slot: int) -> tuple[int, tuple]:
        number, inputs = self._intake.of(slot)
        if number == NOTHING:
            return number, ()
        of_stages = by_stage(inputs, [stage.name for stage in self.program.stages if not stage.inputs])
        if name not in of_stages:
            raise BatchError(f'request {number} is a dictionary without an entry for stage "{name}"')
        return number, as_arguments(of_stages[name])

    def _finished(self, index: int, number: int, outputs: Any) -> None:
        parts = self._parts.setdefault(number, {})
        parts[index] = outputs
        if len(parts) < len(self._ends):
            return
        del self._parts[number]
        if self._answer is not None:
            self._answer(number, outputs if len(parts) == 1 else [parts[end] for end in self._ends])


def opened(inputs: tuple) -> tuple[int, tuple]:
    """The request's number, and the outputs: after the outputs of each stage come the number and how many
    outputs there are."""
    parts: list[tuple] = []
    at, number = len(inputs), NOTHING
    while at > 0:
        number, size = inputs[at - 1].tolist()
        parts.insert(0, inputs[at - 1 - size : at - 1])
        at -= size + 1
    return number, tuple(tensor for part in parts for tensor in part)
