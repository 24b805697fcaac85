# SPDX-License-Identifier: Apache-2.0
"""eval_batch() runs the forwards of the plan: in its order, with its transfers, by the C++ executor.

Micro-batches run in rounds of as many as the plan has, plus one round for the rest. Rounds do not wait for
each other: a rank begins the next when its own part is done, while later ranks still work on this one, so
requests are always in flight. Where the plan runs the model in several directions, batch i goes in direction
i % copies, as in training.
"""

from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from ostinato.profile.model.tensors import map_tensors
from ostinato.groups import everyones
from ostinato.ranks.threads import weakly

from ..section.plans import copies_of


class Forwards:
    """The evaluation side of one engine. `make_executor(program, dynamic_shapes)`: makes the engine's executor for
    this rank."""

    def __init__(self, engine: Any, make_executor):
        self._engine, self._make_executor = engine, make_executor
        self._run = engine._ostinato
        # Evaluations may have different shapes.
        self._dynamic = self._run.trains or engine.module.dynamic_shape
        self._copies = copies_of(self._run.stages)
        self._executors: dict[tuple[int, int], object] = {}  # by number of micro-batches and of directions
        self._first = 0  # first batch of the round
        self._ended: dict[int, tuple] = {}  # by batch: its loss or output, and logits if wanted

    def run(self, batches: int) -> None:
        """Runs every stage of this rank on every batch, and leaves losses and outputs where DeepSpeed expects
        them."""
        self._ended = {}
        # Before the first step it may learn from a forward what layers draw.
        what = (
            f"a forward before step {self._engine.global_steps + 1}"
            if self._engine.module.training
            else f"evaluation {self._run.evaluations}"
        )
        for self._first, micro_batches, copies in rounds(
            batches, self._run.program.micro_batches, self._copies
        ):
            later = f" (batches from {self._first})" if self._first else ""
            self._engine.ostinato_run(self._executor(micro_batches, copies), what + later)
        if self._copies > 1:
            self._bring_together()
        self._engine.fwd_outputs = [made for _, (made, _) in sorted(self._ended.items(), key=itemgetter(0))]
        if self._ended and self._engine.eval_return_logits:
            self._engine.outputs = self._ended[max(self._ended)][1]

    def refuse_without_data(self) -> None:
        """Raises StopIteration on all ranks where the iterator of one has ended: else ranks that do not read
        data would wait for results.
        """
        engine, ended = self._engine, torch.zeros(1, dtype=torch.int32, device=self._engine.device)
        if engine._reads_data():
            try:
                self._run.random_numbers.read_early()
            except StopIteration:
                ended += 1
        dist.all_reduce(ended, group=self._run.group)
        if ended.item():
            raise StopIteration

    @property
    def whole(self):
        """The executor of full rounds; None if none has run yet."""
        return self._executors.get((self._run.program.micro_batches, self._copies))

    def forget_shapes(self) -> None:
        """Shapes are announced again from here on."""
        self._executors.clear()

    def _executor(self, micro_batches: int, copies: int):
        key = (micro_batches, copies)
        if key not in self._executors:
            stages = [stage for stage in self._run.stages if stage.copy < copies]
            program = self._run.program.forwards(micro_batches, [stage.index for stage in stages])
            executor, forward = self._make_executor(program, self._dynamic), weakly(self._forward)
            for number, stage in zip(count(), stages):
                if stage.on(self._engine.stage_id):
                    executor.set_stage(number, partial(forward, stage))
            self._executors[key] = executor
        return self._executors[key]

    def _forward(self, stage, micro_batch: int, inputs: tuple | None):
        """The executor calls it."""
        engine, batch = self._engine, self._first + self._copies * micro_batch + stage.copy
        outputs = engine.forward_stage(stage, batch, inputs)
        if not stage.ends:
            return outputs
        self._ended[batch] = (engine.fwd_outputs.pop(), engine.outputs if engine.eval_return_logits else None)
        return ()

    def _bring_together(self) -> None:
        """Gives every rank the results of all directions: the rank that reports needs them in the order of the
        batches."""
        everyone = everyones(map_tensors(torch.Tensor.cpu, self._ended), self._run.group)
        for ended in everyone if self._ended else ():
            self._ended.update(map_tensors(lambda tensor: tensor.to(self._engine.device), ended))


def rounds(batches: int, micro_batches: int, copies: int):
    """(first batch, micro-batches, number of directions) of each round of a plan for `micro_batches`."""
    first = 0
    while first < batches:
        left = batches - first
        several = min(micro_batches, left // copies)
        yield (first, several, copies) if several else (first, 1, left)
        first += several * copies if several else left
