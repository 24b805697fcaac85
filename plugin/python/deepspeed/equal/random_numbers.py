# SPDX-License-Identifier: Apache-2.0
"""Random numbers that layers draw under a plan: 1F1B's where that is possible; else rank 0 says which layers
draw different ones.

    numbers = RandomNumbers(engine, stages, draws_elsewhere(program, stages, parts, model))      # all ranks
    data_iter = numbers.before_step(data_iter)                   # the first time and after forget_shapes(), runs one micro-batch to learn what layers draw
    numbers.prepare(evaluates=False)                             # a step, or an evaluation
    numbers.begin(batches)
    with numbers.forward(batch): ...                             # around every stage's forward
    numbers.end(whole=True)
    numbers.after_step()                                         # says what differs from 1F1B

DeepSpeed lets each rank draw from its generators for the layers of its partition, in the order of
micro-batches. Where the plan runs layers on different ranks (`elsewhere`) or in a different order, one forward
shows what each layer draws, and the generators are set to where 1F1B would have them (streams). Draws that
were not learned show up in the states of the generators (draws).

Where layers draw as under 1F1B, but loaders or backwards may not (seed_layers; another order of backwards), these
alone are watched, and a rank reads the first batch of a step before its layers run, as in 1F1B.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from ostinato.errors import put
from ostinato.groups import everyones
from ostinato.restrictions import is_deepspeeds

from ..randomness import generators
from ..tell import announce
from ..randomness.draws import BACKWARD, BATCH, LAYERS, LOSS, TORCHS, Draws, merged
from ..data.items import Following, Made, made_once
from ..errors import OstinatoError
from ..section import plans
from ..section.plans import Stage
from ..stages.loss import loss_replaced
from ..randomness.generators import Counts
from ..randomness.random_state import random_state_kept
from .streams import Learning, Streams, layers_kept


def draws_elsewhere(
    program, stages: list[Stage], parts: Sequence[int], model, any_order: bool = False
) -> frozenset[str]:
    """What could draw different random numbers than under 1F1B, of LAYERS, BATCH and BACKWARD (randomness/draws.py). All,
    where a rank of a training runs different layers than in DeepSpeed's own partition (`parts`), or runs them in
    a different order (`any_order`: steps have plans that may); but not layers where seed_layers is on, as each
    then has its own seed. BACKWARD, where only backwards come at other times."""
    if not plans.trains(program):
        return frozenset()
    if any_order or _forwards_differ(program, stages, parts):
        return frozenset({BATCH, BACKWARD} if model.seed_layers else {LAYERS, BATCH, BACKWARD})
    alike = (plans.as_in_1f1b(program, stage, stage.rank, len(parts) - 1) for stage in stages)
    return frozenset() if all(alike) else frozenset({BACKWARD})


def _forwards_differ(program, stages: list[Stage], parts: Sequence[int]) -> bool:
    """Whether a rank runs the forwards of different layers than under 1F1B, or in a different order."""
    if any(stage.ranks != (bisect_right(parts, layer) - 1,) for stage in stages for layer in stage.layers):
        return True
    place = {stage.index: number for number, stage in enumerate(stages)}
    for rank in range(program.ranks):
        order = [(i.micro_batch, place[i.stage]) for i in program.instructions(rank) if i.action == "F"]
        if order != sorted(order):
            return True
    return False


class RandomNumbers:
    """Of one engine. `elsewhere`: what draws_elsewhere() says; nothing else is watched."""

    def __init__(self, engine: Any, stages: list[Stage], elsewhere: frozenset[str]):
        self._engine, self._module, self._stages = engine, engine.module, stages
        self.elsewhere = elsewhere
        self._evaluates = False  # now
        self._draws = Draws()
        self._number = 0  # of the last step
        self._learned = False  # what layers draw in a step
        self._steps: Streams | None = None
        self._evaluations: Streams | None = None
        self._evaluated = False  # at least once, or what layers draw in an evaluation is being learned
        self._told = {"step": False, "evaluation": False}  # whether a rank has said what draws
        self._learning = False  # what runs is neither a step nor an evaluation
        self._loss_draws: bool | None = None  # None: not known, as it has not run yet
        self._streams: Streams | None = None  # of the current step or evaluation
        self._unread: generators.State | None = None  # before the first batch of the next step was read
        self._watcher: Draws | Streams | Learning | None = None  # hears of each layer before it runs

    @property
    def _layers_differ(self) -> bool:
        return LAYERS in self.elsewhere

    @property
    def said(self) -> bool:
        """Whether this rank, or rank 0 for it, has said that a step draws different numbers than 1F1B's."""
        return self._told["step"]

    @property
    def follows(self) -> bool:
        """Whether layers draw in a step, and what 1F1B draws."""
        return self._steps is not None

    # ---- a step, an evaluation

    def before_step(self, data_iter):
        """To be called before each step. Returns the iterator to pass on to train_batch(). All ranks must
        call it."""
        if not self._layers_differ or self._learned:
            return data_iter
        self._learned = True
        if data_iter is not None:
            self._engine.set_dataiterator(data_iter)
        self._engine._compute_loss = True
        self._module.train()
        self._steps = self._learn(follows_none=False)
        self._watcher = None if self._steps else self._draws  # layer by layer
        read = self._engine.data_iterator
        return data_iter if data_iter is None or read is None else read

    def forget_shapes(self) -> None:
        """Dropout draws by the size of its input: the next step learns what layers draw once more. All ranks must
        call it."""
        self._learned = self._learned and self._steps is None

    def prepare(self, evaluates: bool) -> None:
        """To be called before anything else in a step or evaluation: the first evaluation learns what layers
        draw. All ranks must call it."""
        self._evaluates = evaluates
        self._streams = self._of_evaluation() if evaluates else self._steps

    def begin(self, batches: int) -> None:
        """All ranks must call it."""
        if not self._layers_differ:
            self._read_before_layers()
        else:
            self._draws.enter(LAYERS)
            if self._loss_draws and self._streams is None and not self._learning:
                self._watcher = self._draws  # which tells the loss from the layers
        if self._streams is not None:
            streams, self._streams = self._streams, None  # read the first batch before they begin
            streams.begin_step(batches, self._read_first())
            self._watcher = self._streams = streams

    def end(self, whole: bool) -> None:
        """Ends what begin() began. `whole`: it ran to its end."""
        self._module.watcher = None
        self._draws.leave()
        if self._evaluates and not self._layers_differ:
            self._draws.new()
        if self._streams is None:
            return
        if whole:
            self._streams.end_step()
            self._draws.forget(TORCHS)  # the streams account for all of it
        self._watcher = self._streams = None

    def after_step(self) -> None:
        """Rank 0 says what the first step has shown; later, each rank says what it sees. All ranks must call
        it."""
        self._number += 1
        self._watcher = None
        self._tell("step", self._steps, together=self._number == 1)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around an evaluation."""
        first = not self._evaluated
        try:
            yield
        except BaseException:  # its loader may have ended before it began
            self._unread = self._streams = None
            raise
        if self._evaluated:
            self._watcher = None
            self._tell("evaluation", self._evaluations, together=first)

    # ---- what runs in it

    @contextmanager
    def forward(self, batch: int) -> Iterator[None]:
        """Around a stage's forward on one batch."""
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
        """Around DeepSpeed's reading of a batch: what a loader draws there belongs to no layer."""
        if BATCH in self.elsewhere:
            self._draws.enter(BATCH)
        before = generators.current() if self._streams is not None else None
        yield
        if self._streams is not None and before is not None:
            self._streams.note_batch(before)
        if self._layers_differ:
            self._draws.enter(LAYERS)
        else:
            self._draws.leave()

    def read_early(self) -> None:
        """Reads the first batch of the step to come."""
        self._unread = self._unread or (generators.current() if self._streams is not None else None)
        self._engine.read_first_batch()

    def read_step(self, read: Callable[[], None], count: int) -> None:
        """Reads all batches of a step, before begin(): `read` reads the next. A loader that starts over draws
        at the first."""
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

    def before_backward(self, batch: int) -> None:
        if self._streams is not None:
            self._module.watcher = self._streams
            self._streams.begin(batch, recomputed=True)
        elif BACKWARD in self.elsewhere and not self._layers_differ and self._number == 0:
            self._draws.enter(BACKWARD)

    def after_backward(self) -> None:
        if self._streams is not None:
            self._module.watcher = None
            self._streams.end()
        elif not self._layers_differ:
            self._draws.leave()

    # ---- how

    def _tell(self, what: str, streams: Streams | None, together: bool) -> None:
        """`together`: all ranks call it."""
        if not self.elsewhere:
            return
        mine = self._draws.new(), streams.new() if streams else {}
        everyone = everyones(mine) if together else [mine]
        drawn = merged((draws for draws, _ in everyone), with_batches=not self._layers_differ)
        strays = merged((stray for _, stray in everyone), with_batches=True)
        first = what == "step" and self._number == 1
        if streams is None and (first or LOSS in drawn) and self._loss_stays():
            # It goes on with its rank's generators, as under 1F1B.
            self._loss_draws = drawn.pop(LOSS, None) is not None or bool(self._loss_draws)
        rank = self._engine.global_rank
        if (drawn or strays) and not self._told[what] and (not together or rank == 0):
            put(announce.draws(rank, what, self._engine.global_steps, drawn, strays))
        self._told[what] = self._told[what] or bool(drawn or strays)

    def _of_evaluation(self) -> Streams | None:
        if self._learning or not self._layers_differ:
            return None
        if not self._evaluated:
            self._evaluations = self._learn(follows_none=True)
            self._evaluated = True
            if self._evaluations is None:
                self._watcher = self._draws  # layer by layer
        return self._evaluations

    def _read_before_layers(self) -> None:
        """Where layers set the generators that a loader draws from."""
        if BATCH not in self.elsewhere or not self._engine._reads_data():
            return
        self._engine.read_first_batch()
        if self._number == 0:
            self._draws.new()  # it was drawn as under 1F1B

    def _read_first(self) -> generators.State | None:
        """Reads the first batch at once, as a loader that starts over draws before any layer does. Returns the
        state before it."""
        if not self._engine._reads_data():
            return None
        before = self._unread or generators.current()
        self._engine.read_first_batch()
        self._unread = None
        return before

    def _learn(self, follows_none: bool) -> Streams | None:
        """Before the first step or evaluation, or one of other shapes: runs one micro-batch to learn what layers draw. The batch is
        used again, and buffers are restored. `follows_none`: makes streams also where no layer draws, for what
        a loader draws. All ranks must call it.
        """
        engine, run = self._engine, self._engine._ostinato
        batches_before = run.batches_before
        loader = engine.training_dataloader
        iterator = engine.data_iterator
        self._unread = generators.current()
        first = []
        if iterator is not None:
            with suppress(StopIteration):
                first.append(Made(made_once(engine.batch_fn)(next(iterator))))
            engine.data_iterator = iter(first)
        self._watcher, self._learning = (learning := Learning()), True
        try:
            counts = self._counted(learning)
        finally:
            self._watcher, self._learning, run.batches_before = None, False, batches_before
            if iterator is not None:
                engine.training_dataloader, engine.data_iterator = loader, Following(first, iterator)
        self._draws.new()
        streams = self._follow(counts, follows_none)
        self._unread = self._unread if streams else None
        return streams

    def _counted(self, learning: Learning) -> dict[int | str, Counts | None]:
        """What layers draw in one micro-batch. All ranks must call it."""
        engine = self._engine
        with torch.set_grad_enabled(self._module.training), random_state_kept(), layers_kept(self._module):
            with self._without_loss() as given:
                engine._exec_schedule(schedule.InferenceSchedule(1, engine.num_stages, engine.stage_id))
            counts = self._gathered(learning)
            if given is not None and counts and self._loss_draws is None:
                learning.enter(LOSS)
                for outputs, labels in given:
                    self._module.loss_fn(outputs, labels)
                learning.leave()
                counts = self._gathered(learning)
            if given is None or counts:
                self._loss_draws = LOSS in counts
        return counts

    @contextmanager
    def _without_loss(self) -> Iterator[list[tuple[Any, Any]] | None]:
        """Leaves out the loss, which may count what it gets for the script, unless it is known to draw, or runs
        where only a count lets it draw what it draws under 1F1B. Yields what it would have been given; None where
        it runs."""
        model, engine = self._module, self._engine
        callers = engine._INSTRUCTION_MAP[schedule.ForwardPass], model.forward, model.get_additional_losses
        own = all(map(is_deepspeeds, callers))  # else what the loss returns may be more than a tensor
        if model.loss_fn is None or self._loss_draws or not own or not self._loss_stays():
            yield None
            return
        given: list[tuple[Any, Any]] = []

        def note(outputs: Any, labels: Any) -> torch.Tensor:
            given.append((outputs, labels))
            return torch.zeros((), device=engine.device)

        with loss_replaced(model, note):
            yield given

    def _loss_stays(self) -> bool:
        """Whether the loss runs as under 1F1B: on the last rank, and micro-batch after micro-batch."""
        run, last = self._engine._ostinato, self._engine.num_stages - 1
        ends = [stage for stage in self._stages if stage.ends]
        if run.step_plans is not None or [stage.ranks for stage in ends] != [(last,)]:
            return False
        forwards = (i for i in run.program.instructions(last) if (i.action, i.stage) == ("F", ends[0].index))
        order = [forward.micro_batch for forward in forwards]
        return order == sorted(order)

    def _gathered(self, learning: Learning) -> dict[int | str, Counts | None]:
        """What the layers of all ranks draw. All ranks must call it."""
        everyone = everyones(learning.counts, self._engine._ostinato.group)
        return {what: count for of_rank in everyone for what, count in of_rank.items()}

    def _follow(self, counts: dict[int | str, Counts | None], follows_none: bool) -> Streams | None:
        run = self._engine._ostinato
        shared = {layer for stage in self._stages if stage.sharded for layer in stage.layers}
        if drawing := sorted(shared & {what for what in counts if isinstance(what, int)}):
            # Outputs would differ between ranks, and gradients would fit no model.
            raise OstinatoError(
                f"layer{'s'[: len(drawing) > 1]} {', '.join(map(str, drawing))}: several ranks hold parts, and each would draw random numbers of its "
                "own: set PipelineModule(seed_layers=True), or place such a layer on one rank"
            )
        if (not counts and not follows_none) or None in counts.values():
            return None
        known = {what: count for what, count in counts.items() if count is not None}
        return Streams(run.stock_parts, self._engine.stage_id, known, run.group, self._engine.device)
