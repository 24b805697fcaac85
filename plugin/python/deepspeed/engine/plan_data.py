# SPDX-License-Identifier: Apache-2.0
"""The data iterator of an engine that runs a plan: which ranks read it, and when. Where each step gets its own
plan, they read all of a step before it begins."""

from itertools import repeat
from typing import Any

from ostinato.groups import everyones
from ostinato.ranks.presence import ranks_in_words

from ..errors import OstinatoError
from ..data.items import making_once, own
from ..data.sizes import Seen, seen_by, size_function
from .stage_passes import StagePasses


BROUGHT = repeat(None)  # replaces None where batch_fn(None) gets the data from the slice rank that reads them


class PlanData(StagePasses):
    """Mixed in before PipelineEngine."""

    def set_dataloader(self, loader):
        if self._reads_data():
            self.training_dataloader = loader
            self.data_iterator = iter(loader)
        # This rank reads under 1F1B, and a DataLoader draws when it begins.
        elif loader is not None and self.stage_id in (0, self.num_stages - 1):
            self.set_dataiterator(iter(loader))

    def set_dataiterator(self, iterator):
        if self._reads_data():
            self.training_dataloader = None
            self.data_iterator = self._or_brought(iterator)
        elif not self._steps_here:
            self._ostinato.unread_iterator = iterator

    def _or_brought(self, iterator):
        """Where ranks hold slices of the same layers, DeepSpeed lets one read, and calls batch_fn, which may
        send, on all of them."""
        return (
            BROUGHT
            if iterator is None and self.batch_fn is not None and self.grid.slice_parallel_size > 1
            else iterator
        )

    def _reads_data(self) -> bool:
        return any(c.rank == self.stage_id and (c.reads or c.ends) for c in self._ostinato.stages)

    def _refuse_without_data(self, data_iter) -> None:
        """All ranks must call it, and raise the same error."""
        given = self.data_iterator if data_iter is None else data_iter
        everyone = everyones(
            (
                self._reads_data(),
                given is not None and given is not BROUGHT,
                given is BROUGHT,
                self.grid.slice_group,
            )
        )
        owns = [own for _, own, _, _ in everyone]
        lacks = [
            reads and not own and not (brought and any(owns[peer] for peer in peers))
            for reads, own, brought, peers in everyone
        ]
        if ranks := [rank for rank, without in enumerate(lacks) if without]:
            raise OstinatoError(
                f"train_batch() got no data on {ranks_in_words(ranks)}, where the plan reads it: pass data on every rank, or on those where "
                "engine.is_first_stage() or engine.is_last_stage() is true"
            )

    def _plan_step(self, batches: int) -> None:
        """Plans the step for the sizes of its micro-batches, which are read now."""
        run = self._ostinato
        seen = self._read_step(batches) if self._reads_data() else Seen()
        assert run.step_plans is not None and run.executor is not None
        with run.outside.planning():
            program = run.step_plans.next(seen, self.global_steps + 1)
        run.executor.set_program(program)
        if run.trace is not None:
            run.trace.planned(program, run.step_plans.last)

    def _read_step(self, batches: int) -> Seen:
        """Reads all items of a step; all ranks report an error."""
        run = self._ostinato
        assert run.section.sizes is not None
        items: list[Any] = []
        try:
            run.random_numbers.read_step(lambda: items.append(own(self._next_unread())), batches)
        except Exception as error:  # the user's loader
            if isinstance(error, StopIteration) and not items:
                return Seen(ended=True)
            return Seen(error=f"reading micro-batch {len(items)}: {type(error).__name__}: {error}")
        run.step.read_ahead.extend(items)
        return seen_by(size_function(run.section.sizes), items)

    def _next_batch(self):
        run = self._ostinato
        item = run.step.read_ahead.popleft() if run.step.read_ahead else self._next_unread()
        run.same_data.note(item)
        return item

    def _next_unread(self):
        """Reads an item through DeepSpeed's code."""
        with making_once(self):
            return super()._next_batch()

    def read_first_batch(self) -> None:
        """Reads the first batch of the step or evaluation that begins."""
        with self._reading():
            self._ostinato.step.batches.read_first()
