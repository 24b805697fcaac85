# SPDX-License-Identifier: Apache-2.0
"""Another plan on the same stages, between two steps: more or fewer micro-batches (`set_train_batch_size()`), or
another order ("adapt").

Layers stay where they are. Rank 0 searches a plan for each number of micro-batches when the script first asks
for it; all ranks lower it, keep it, and change over between two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.errors import counted

from ..equal.random_numbers import RandomNumbers, draws_elsewhere
from ..errors import OstinatoError
from ..section import plans
from ..section.search import plan_of_size
from ..tell import announce
from .adapt import Reordered
from .first_step import FirstStep
from .plan_checkpoints import PlanCheckpoints


class BatchSize(PlanCheckpoints):
    """Mixed in before PipelineEngine."""

    _training_executor: Callable[[], Any]

    def set_train_batch_size(self, train_batch_size):
        """All ranks must call it."""
        before, planned = self.train_batch_size(), self.micro_batches
        super().set_train_batch_size(train_batch_size)
        if self.micro_batches == planned or not self._ostinato.trains:
            return
        try:
            program = self._program_for(self.micro_batches)
        except OstinatoError as error:
            super().set_train_batch_size(before)
            raise OstinatoError(f"set_train_batch_size({train_batch_size}): {error}") from None
        self._follow_program(program)

    def check_size(self) -> None:
        """Raises OstinatoError where the script has written to engine.micro_batches."""
        planned = self._ostinato.program.micro_batches * plans.copies_of(self._ostinato.stages)
        if self.micro_batches != planned:
            raise OstinatoError(
                f"engine.micro_batches is {self.micro_batches}, but the plan is for {planned}: change it with "
                "engine.set_train_batch_size()"
            )

    def _program_for(self, micro_batches: int) -> Any:
        run, copies = self._ostinato, plans.copies_of(self._ostinato.stages)
        if micro_batches % copies:
            raise OstinatoError(
                f"the plan runs the model in {copies} directions, which {counted(micro_batches, 'micro-batch')} do not divide into"
            )
        if run.plans_steps:
            raise OstinatoError(
                'not with "sizes" in the "ostinato" section: each step is planned for as many'
            )
        if not run.section.searches:
            raise OstinatoError(
                f'"plan" in the "ostinato" section is for {counted(run.program.micro_batches * copies, "micro-batch")} a step: '
                'name a "profile", or "auto": true, and each number gets its own plan'
            )
        count = micro_batches // copies
        if count not in run.programs:
            with plan_of_size(run.section, run.paths, run.placement, count) as found:
                run.programs[count] = plans.lower(found)
        return run.programs[count]

    def _first_step_of(self, program: Any) -> FirstStep:
        run, samples = self._ostinato, self.train_micro_batch_size_per_gpu()
        return FirstStep(program, run.stages, run.stock_parts, self.module, samples, run.holders)

    def _follow_order(self, reordered: Reordered | None) -> None:
        """From the next step on, if "adapt" has a plan on the same stages."""
        if reordered is None:
            return
        run, program = self._ostinato, reordered.program
        run.placement, run.programs = reordered.placement, {program.micro_batches: program}
        self._follow_program(program)

    def _follow_program(self, program: Any) -> None:
        run = self._ostinato
        run.program, run.was_equal = program, False
        run.executor = self._training_executor()
        if run.first_step is not None:
            run.first_step = self._first_step_of(program)
        if run.speedup is not None:
            run.speedup.over = True
        if run.trace is not None:
            run.trace.follow(program)
        elsewhere = draws_elsewhere(program, run.stages, run.stock_parts, self.module)
        if not elsewhere <= run.random_numbers.elsewhere:
            run.random_numbers = RandomNumbers(self, run.stages, elsewhere)
        announce.say(f"from step {self.global_steps + 1} on: {announce.changed(program)}")
        if (losses := run.expected_losses()) != run.losses_said:
            run.losses_said = losses
            announce.say(losses)
