# SPDX-License-Identifier: Apache-2.0
"""How the numbers of a run relate to 1F1B's: watched while it runs, and said by rank 0 (claims).

    equality = Equality(engine, claim, stages)      # all ranks
    equality.before_step(data_iter)                 # the first time, runs a micro-batch for what layers draw
    equality.prepare(evaluates=False, unlike=[])    # a step, or an evaluation
    equality.begin(batches)
    with equality.forward(batch): ...               # around every stage's forward
    equality.end(whole=True)
    equality.after_step(1)                          # says what the step has shown

What a backward does beside it, what stages hand on, and what reading a batch draws is told to it likewise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from ostinato.ranks.groups import everyones

from . import announce, generators
from .borders import Borders
from .claims import Claim, Seen, drawn_in_update, lost_in_1f1b, merged
from .draws import BATCH, LAYERS, TORCHS, Draws
from .interleaved import Before, Interleaved, as_1f1b
from .items import Made, made_once
from .overlaps import Overlaps, overwritten
from .plans import Stage
from .random_state import KINDS, random_state_kept, same, states
from .readers import Readers
from .shared_state import SharedState
from .streams import Learning, Streams, layers_kept, may_draw


class Equality:
    """Of one engine. `claim`: what is known before step 1, of which `self.claim` is what the line before it says."""

    def __init__(self, engine: Any, claim: Claim, stages: list[Stage]):
        self._engine, self._module, self._stages = engine, engine.module, stages
        self.claim = claim
        self._borders: Borders | None = None  # where several tensors may meet at a border that 1F1B does not have
        self._draws: Draws | None = None  # where layers may draw other random numbers than in 1F1B
        self._may_draw = False  # some layer of the model looks as if it drew some
        self._steps: Streams | None = None  # so that layers draw those of 1F1B
        self._evaluations: Streams | None = None
        self._evaluated = False  # once at least, or what layers draw in it is being learned
        self._evaluation_told = False  # that layers draw in it
        self._draws_told = False  # that they do in a step
        self._draws_of_update: list[str] | None = None if engine._ostinato.stock_names else []  # generators; None: nothing seen yet
        self._reasons: list[str] = []  # why numbers are others than 1F1B's; still to be said
        self._learning = False  # what runs is no step, and no evaluation
        self._streams: Streams | None = None  # those of the step or evaluation that runs
        self._unread: generators.State | None = None  # before the batch was read that begins what comes next
        self._watcher: Draws | Streams | Learning | None = None  # is told of each layer before it runs
        moves = engine._ostinato.plans_steps or not as_1f1b(engine._ostinato.program, stages, engine._ostinato.stock_parts)
        self._interleaved = Interleaved(self._module) if moves else None
        self._overlaps = Overlaps(engine._ostinato.stock_parts) if moves else None
        self._readers = Readers(engine, stages)
        self._shared: SharedState | None = None  # in the first step
        self._before: Before | None = None  # the forward or backward that runs
        self._note_backward = None  # after the backward that runs: notes what of its layers it changed
        if not claim.differs:
            self._watch_borders()
        if claim.draws:
            self._draws = Draws()
            self._may_draw = any(everyones(may_draw([*self._module._local_funcs, self._module.loss_fn])))
            self.claim = replace(claim, follows=self._may_draw)

    @property
    def follows_draws(self) -> bool:
        """Layers may draw what they would under 1F1B: then the loader must be read where 1F1B reads it."""
        return self.claim.draws and self._may_draw

    @property
    def asks_as_1f1b(self) -> bool:
        """A loader is asked what it gives under 1F1B: the first rank reads inputs, and the last one labels."""
        return self._readers.looking

    def one_by_one(self, stage: Stage) -> bool:
        """Whether the stage's backward starts from one output after the other, as DeepSpeed's do."""
        return self._borders is not None and self._borders.one_by_one(stage)

    def doubt(self, reasons: list[str]) -> None:
        """Why numbers are others than 1F1B's, in words: what the next step has shown."""
        self._reasons += reasons

    # ---- a step, an evaluation

    def before_step(self, data_iter):
        """Before the first one. Returns the iterator that train_batch() is still to be given. All ranks must call it."""
        self._readers.begin(data_iter)
        if not self.claim.draws:
            return data_iter
        if self._may_draw:
            if data_iter is not None:
                self._engine.set_dataiterator(data_iter)
                data_iter = None
            self._engine._compute_loss = True
            self._module.train()
            self._steps = self._learn(follows_none=False)
        self._watcher = None if self._steps else self._draws  # layer by layer
        return data_iter

    def prepare(self, evaluates: bool, unlike: list[str]) -> None:
        """Before anything of a step or evaluation, for the first evaluation learns what layers draw in it. All ranks must call it.
        `unlike`: why numbers are others than 1F1B's from here on, in words.
        """
        self.doubt(unlike)
        if self._borders is not None:
            self._borders.follow()
        self._streams = self._of_evaluation() if evaluates else self._steps

    def begin(self, batches: int) -> None:
        """All ranks must call it."""
        if self._engine._steps_here == 1 and self._interleaved is not None and torch.is_grad_enabled():
            self._shared = SharedState(self._module, self._stages, self._engine._ostinato.stock_parts)
            self._shared.begin()
        if self._draws is not None:
            self._draws.enter(LAYERS)
        if self._streams is not None:
            streams, self._streams = self._streams, None  # the first batch is read before they begin
            streams.begin_step(batches, self._read_first())
            self._watcher = self._streams = streams

    def end(self, whole: bool) -> None:
        """Whatever has happened since begin(). `whole`: it ran to its end."""
        self._module.watcher = None
        if self._interleaved is not None:
            self._interleaved.end()
        if self._shared is not None:
            self._reasons += self._shared.end()
            self._shared = None
        if self._draws is not None:
            self._draws.leave()
        if self._streams is None:
            return
        if whole:
            self._streams.end_step()
            assert self._draws is not None  # what draws is learned where something does
            self._draws.forget(TORCHS)  # all of it the streams'
        self._watcher = self._streams = None

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around what follows the last backward: reductions, and the optimizer's step."""
        before = states() if self._draws_of_update is None else ()
        yield
        if kinds := [kind for kind, was, now in zip(KINDS, before, states(), strict=False) if not same(was, now)]:
            self._draws_of_update = kinds
            self._reasons.append(drawn_in_update(kinds))

    def after_step(self, number: int) -> None:
        """Rank 0 says what the first step has shown; what comes later is said by the rank that sees it. All ranks must call it."""
        if number == 1:
            self._watcher = None
            self._reasons += self._readers.end()
            if self._overlaps is not None and (found := self._overlaps.found(everyones(self._overlaps.seen))):
                self._reasons.append(overwritten(found))
        if self._interleaved is not None:
            self._reasons += self._interleaved.new()
        if self.claim.open or self._reasons:
            self._tell_step(number, first=number == 1 and self.claim.open)
        twice = self._seen_twice()
        if twice and self._engine.grid.get_data_parallel_rank() == 0:
            print(announce.run_twice(self._engine.global_rank, twice), flush=True)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around one. Rank 0 says after the first where layers draw other numbers than under 1F1B; later, the rank that sees it."""
        first = not self._evaluated
        yield
        if not self._evaluated:
            return
        self._watcher = None
        assert self._draws is not None
        seen = Seen(draws=self._draws.new(), strays=self._evaluations.new() if self._evaluations else {})
        everyone = everyones(seen) if first else [seen]
        drew = _drew(everyone)
        rank = self._engine.global_rank
        if drew and not self._evaluation_told and (not first or rank == 0):
            print(announce.evaluated(rank, self.claim.after(everyone)), flush=True)
        self._evaluation_told = self._evaluation_told or drew

    # ---- what runs in it

    @contextmanager
    def forward(self, batch: int) -> Iterator[None]:
        """Around a stage's, on one batch."""
        if self._watcher is None:
            yield
            return
        self._module.watcher = self._watcher
        self._watcher.begin(batch)
        yield
        self._module.watcher = None
        self._watcher.end()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around what DeepSpeed's code reads; what a loader draws there is no layer's."""
        if self._draws is not None:
            self._draws.enter(BATCH)
        before = generators.current() if self._streams is not None else None
        yield
        if self._streams is not None and before is not None:
            self._streams.note_batch(before)
        if self._draws is not None:
            self._draws.enter(LAYERS)

    def note_item(self, item: Any) -> None:
        """As the loader gives it, and batch_fn makes it."""
        self._readers.note(item)

    def read_early(self) -> None:
        """The first batch of what is to begin."""
        self._unread = self._unread or (generators.current() if self._streams is not None else None)
        self._engine.read_first_batch()

    def read_ahead(self, read: Callable[[], None], count: int) -> None:
        """All batches of a step, before begin(): `read` reads the next. A loader that begins anew draws at the first."""
        if self._streams is None:
            with self.reading():
                for _ in range(count):
                    read()
            return
        self._unread = self._unread or generators.current()
        read()
        first = generators.current()
        for _ in range(1, count):
            read()
        self._streams.note_batch(first)

    def before_forward(self, stage: Stage, micro_batch: int) -> None:
        """Of a training step."""
        self._look(stage, micro_batch, forward=True)
        if self._overlaps is not None and self._before is not None and self._engine._steps_here == 1:
            self._module.given = partial(self._overlaps.begin, stage)

    def made(self, stage: Stage, outputs: Any) -> None:
        """By a stage's forward, before what it hands on is copied."""
        self._module.given = None
        if self._overlaps is not None:
            self._overlaps.end(stage, outputs, self._module.functions_of(stage))

    def after_forward(self, outputs) -> None:
        if self._interleaved is not None and self._before is not None:
            self._interleaved.forward(self._before, outputs)

    def _look(self, stage: Stage, micro_batch: int, forward: bool) -> None:
        watched, self._before = self._interleaved, None
        if watched is not None and watched.looks(self._engine._steps_here, micro_batch, self._engine._ostinato.program.micro_batches):
            self._before = watched.before(stage, forward)

    def received(self, stage: Stage, inputs: tuple | None) -> None:
        """What the stage before sent; None where there is none."""
        if self._borders is not None and inputs is not None:
            self._borders.received(stage, inputs)

    def handed_on(self, stage: Stage, outputs) -> None:
        if self._borders is not None:
            self._borders.handed_on(stage, outputs)

    def before_backward(self, stage: Stage, batch: int, micro_batch: int, first: bool) -> None:
        """`first`: of its stage, and no half that computes gradients of weights alone."""
        self._look(stage, micro_batch, forward=False)
        if first:
            self._note_backward = self._module.watch_backward(stage)
        if self._streams is not None:
            self._module.watcher = self._streams
            self._streams.begin(batch, recomputed=True)

    def after_backward(self) -> None:
        if self._streams is not None:
            self._module.watcher = None
            self._streams.end()
        if self._interleaved is not None and self._before is not None:
            self._interleaved.backward(self._before)
        if self._note_backward is not None:
            self._note_backward()
            self._note_backward = None

    # ---- how

    def _watch_borders(self) -> None:
        engine, program = self._engine, self._engine._ostinato.program
        halves = {i.stage for i in program.instructions(engine.stage_id) if i.action == "I"}
        mine = [stage for stage in self._stages if stage.on(engine.stage_id)]
        split = {c.index for c in mine if c.index in halves and self._module.may_split(c)}
        self._borders = Borders(engine._ostinato.stock_parts, split, self._overlaps)
        if self._interleaved is not None:
            self._interleaved.halved = split
        if self.claim.borders:
            self._borders.watch(self._module, mine)

    def _tell_step(self, number: int, first: bool) -> None:
        """`first`: all ranks call it, to say what step 1 has shown."""
        several, strided = self._borders.new() if self._borders else ([], [])
        seen = Seen(
            borders=several,
            draws=self._draws.new() if self._draws else {},
            strays=self._steps.new() if self._steps else {},
            followed=self._steps.drawn() if self._steps else [],
            strided=strided,
            unlike=self._unlike(),
            twice=self._seen_twice() if first else [],
        )
        if first:
            everyone = everyones(seen)
            self._draws_told = _drew(everyone)
            if self._engine.global_rank == 0:
                print(announce.shown(self.claim.after(everyone)), flush=True)
        elif seen.borders or seen.strided or seen.unlike or (_drew([seen]) and not self._draws_told):
            self._draws_told = self._draws_told or _drew([seen])
            print(announce.shown_later(self._engine.global_rank, self._engine.global_steps, self.claim.after([seen])), flush=True)

    def _unlike(self) -> list[str]:
        """Since the last call: what makes the numbers others than 1F1B's, in words."""
        found, self._reasons = self._reasons, []
        stripped = self._borders.new_stripped() if self._borders else {}
        return found + [lost_in_1f1b(layer, what) for layer, what in sorted(stripped.items())]

    def _seen_twice(self) -> list[str]:
        """Since the last call: what recomputation has changed once more, in words."""
        said, self._module.run_twice = list(dict.fromkeys(self._module.run_twice)), []
        return said

    def _of_evaluation(self) -> Streams | None:
        if self._learning or not self.claim.draws:
            return None
        if not self._evaluated:
            self._evaluated = True
            if self._may_draw:
                self._evaluations = self._learn(follows_none=True)
            if self._evaluations is None:
                self._watcher = self._draws  # layer by layer
        return self._evaluations

    def _read_first(self) -> generators.State | None:
        """The first batch is read at once: where a loader begins anew, it draws before any layer does. The state before it."""
        if not self._engine._reads_data():
            return None
        before = self._unread or generators.current()
        self._engine.read_first_batch()
        self._unread = None
        return before

    def _learn(self, follows_none: bool) -> Streams | None:
        """Before the first step or evaluation: runs one micro-batch for what layers draw in it. Its batch is read again, and the layers
        become what they were. `follows_none`: streams of layers that draw nothing, too, for what a loader draws. All ranks must call it.
        """
        engine, run = self._engine, self._engine._ostinato
        batches_before, loader, iterator = run.batches_before, engine.training_dataloader, engine.data_iterator
        self._unread = generators.current()
        first = [Made(made_once(engine.batch_fn)(item)) for item in islice(iterator, 1)] if iterator is not None else []
        if iterator is not None:
            engine.data_iterator = iter(first)
        self._watcher, self._learning = (learning := Learning()), True
        with torch.set_grad_enabled(self._module.training), random_state_kept(), layers_kept(self._module) as left:
            engine._exec_schedule(schedule.InferenceSchedule(1, engine.num_stages, engine.stage_id))
        self._watcher, self._learning, run.batches_before = None, False, batches_before
        run.labels.forget()
        if left:
            self.doubt([f"a forward before the first step shows what layers draw, and these are not what they were: {', '.join(left)}"])
        assert self._draws is not None
        self._draws.new()
        if iterator is not None:
            engine.training_dataloader, engine.data_iterator = loader, chain(first, iterator)
        streams = self._follow(learning, follows_none)
        self._unread = self._unread if streams else None
        return streams

    def _follow(self, learning: Learning, follows_none: bool) -> Streams | None:
        run = self._engine._ostinato
        counts = {what: count for of_rank in everyones(learning.counts, run.group) for what, count in of_rank.items()}
        shared = {layer for stage in self._stages if stage.sharded for layer in stage.layers}
        if (not counts and not follows_none) or None in counts.values() or shared & set(counts):
            return None
        return Streams(run.stock_parts, self._engine.stage_id, counts, run.group, self._engine.device)


def _drew(everyone: list[Seen]) -> bool:
    return any(rank.strays or merged([rank.draws]) for rank in everyone)
