# SPDX-License-Identifier: Apache-2.0
"""The random numbers that 1F1B draws, under any placement.

In DeepSpeed's own pipeline each rank draws from its own generators: micro-batch after micro-batch, for the
layers of its partition in order. That sequence is the rank's stream. Where each layer draws the same amount of
random numbers for every micro-batch, the state that it starts from can be computed: the stream's state at the
beginning of the step, advanced by a known count. So a rank that runs a layer from another rank's partition
sets its generators to that state before the layer, and restores them afterwards.

    counts = Learning(...)                  # watches one forward of each layer, and counts what it draws
    streams = Streams(parts, rank, counts, group, device)
    streams.begin_step(batches)             # all ranks: exchanges the states at the beginning of the step
    streams.begin(batch); streams.enter(layer); ...; streams.end()      # around each forward and recomputation
    streams.end_step()
    streams.new()                           # layers that drew more or fewer than was learned: not 1F1B's from there on

Random numbers that a hook draws in a backward, or a layer that recomputes itself without restoring its random
state, belong to no stream: they have a separate state, which goes on from one such draw to the next.

Training and evaluation have separate streams, because layers draw differently in them; "step" stands for
either.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import torch
import torch.distributed as dist

from ..randomness import generators
from ostinato.buffers import Buffers
from ..randomness.draws import BACKWARD, BATCH, LOSS, TORCHS, Draws
from ..randomness.generators import Counts, State
from ..randomness.random_state import torchs
from ..stages.module import StagedLayers


class Learning(Draws):
    """How many random numbers each layer of this rank draws. `counts`: by layer; None where they are not
    torch's, or cannot be counted."""

    def __init__(self):
        super().__init__()
        self.counts: dict[int | str, Counts | None] = {}

    def end(self) -> None:
        self.leave()

    def _drew(self, what: int | str, kinds: set[str], states_now: tuple) -> None:
        self.counts[what] = (
            generators.taken(torchs(self._states), torchs(states_now)) if kinds <= TORCHS else None
        )


class Streams:
    """Of one rank. `parts`: DeepSpeed's partition; `counts`: of every layer that draws, equal on all ranks
    of the pipeline."""

    def __init__(self, parts: list[int], rank: int, counts: dict[int | str, Counts], group, device):
        self._rank, self._counts, self._group, self._device = rank, counts, group, device
        self._order: list[list[int | str]] = [[] for _ in parts[1:]]  # by stream, what draws from it
        for layer in sorted(what for what in counts if isinstance(what, int)):
            self._order[bisect_right(parts, layer) - 1].append(layer)
        if LOSS in counts:
            self._order[-1].append(LOSS)
        self._of = {what: stream for stream, order in enumerate(self._order) for what in order}
        self._total = [_sum(counts[what] for what in order) for order in self._order]
        self._starts: list[list[State]] = []  # by stream and batch, as far as they were needed
        # By stream and batch, the state behind the layer that was last entered, and how much was drawn until there.
        self._reached: dict[tuple[int, int], tuple[Counts, State]] = {}
        self._batch = self._batches = 0
        self._checks = self._entered = True
        self._beside: State | None = None  # the state for draws in backwards; None until there are some
        self._own = self._expected = generators.current()
        # In this step nothing draws but loaders, on the ranks where they do in DeepSpeed's own pipeline.
        self._only_loaders = False
        self._now: int | str | None = None
        self._anew = False
        self._new: dict[int | str, list[str]] = {}

    def begin_step(self, batches: int, before: State | None) -> None:
        """All ranks of the pipeline must call it. `before`: the state before this rank read the first batch;
        None where it reads none.

        In DeepSpeed's own pipeline the first and the last rank read the batch, so their generators also move
        when a loader starts over and shuffles.
        """
        self._batches, after, last = batches, generators.current(), len(self._order) - 1
        drew = generators.taken(before, after) if before is not None else tuple(0 for _ in after)
        if drew is None or (any(drew) and self._rank not in (0, last)):
            self._new[BATCH] = ["torch"]
            drew = tuple(0 for _ in after)
        reads = before is not None and self._rank in (0, last)
        self._starts = [[state] for state in self._gathered(after if reads else before or after, drew, reads)]

    def end_step(self) -> None:
        """Sets this rank's generators to where DeepSpeed's own pipeline would have left them."""
        if not self._only_loaders:
            generators.become(self._start(self._rank, self._batches))
        self._starts, self._reached = [], {}

    def begin(self, batch: int, recomputed: bool = False) -> None:
        """`recomputed`: by code that sets the generators itself, so that nothing is checked."""
        self._batch, self._now, self._checks, self._entered = batch, None, not recomputed, False
        self._anew = False
        self._own = self._expected = generators.current()
        if recomputed:  # start elsewhere than forwards, so that a state restored from a forward is told apart
            self._beside = self._beside or generators.advanced(self._own, tuple(4 for _ in self._own))
            generators.become(self._beside)

    def drawn_anew(self) -> None:
        """Under 1F1B, what runs next draws different random numbers than in its forward."""
        self._anew = True

    def enter(self, what: int | str) -> None:
        self._check()
        if self._anew and what in self._of:
            self._new[BACKWARD] = ["torch"]
        self._now, self._entered = what, True
        if what in self._of:
            drawn, start = self._start_of(what)
            generators.become(start)
            self._expected = generators.advanced(start, self._counts[what])
            self._reached[self._of[what], self._batch] = _added(drawn, self._counts[what]), self._expected

    def end(self) -> None:
        self._check()
        if not self._checks and not self._entered:
            self._note_beside()
        generators.become(self._own)

    def _note_beside(self) -> None:
        now = generators.current()
        if self._beside is not None and not generators.same(now, self._beside):
            self._beside, self._new[BACKWARD] = now, ["torch"]

    def _check(self) -> None:
        """Checks that what ran last has drawn what was learned."""
        if (
            self._checks
            and self._now is not None
            and not generators.same(generators.current(), self._expected)
        ):
            self._new[self._now] = ["more or fewer than in the first forward"]
            self._expected = generators.current()

    def note_batch(self, before: State) -> None:
        """To be called after a batch was read within a step."""
        if not self._only_loaders and not generators.same(before, generators.current()):
            self._new[BATCH] = ["torch"]

    def new(self) -> dict[int | str, list[str]]:
        found, self._new = self._new, {}
        return found

    def _start_of(self, layer: int | str) -> tuple[Counts, State]:
        """How much its stream draws before it on the current batch, and the state then. Layers come in order,
        mostly: O(what the layers since the last one draw)."""
        stream = self._of[layer]
        order = self._order[stream]
        nothing = tuple(0 for _ in self._counts[layer])
        before = _sum(self._counts[other] for other in order[: order.index(layer)]) or nothing
        drawn, state = self._reached.get((stream, self._batch), (nothing, self._start(stream, self._batch)))
        if any(a > b for a, b in zip(drawn, before, strict=True)):
            drawn, state = nothing, self._start(stream, self._batch)
        return before, generators.advanced(state, tuple(b - a for a, b in zip(drawn, before, strict=True)))

    def _start(self, stream: int, batch: int) -> State:
        """O(batches), once per step and stream."""
        states = self._starts[stream]
        while len(states) <= batch:
            total = self._total[stream]
            states.append(states[-1] if total is None else generators.advanced(states[-1], total))
        return states[batch]

    def _gathered(self, state: State, drew: Counts, reads: bool) -> list[State]:
        """The state of each rank of the pipeline; after the first batch on ranks that DeepSpeed lets read it."""
        sizes = [len(tensor) for tensor in state]
        numbers = torch.tensor([reads, *drew], dtype=torch.int64, device="cpu")
        mine = torch.cat([*state, numbers.view(torch.uint8)]).to(self._device)
        everyone = [torch.empty_like(mine) for _ in self._order]
        dist.all_gather(everyone, mine, group=self._group)
        parts = [
            [part.clone() for part in whole.cpu().split([*sizes, 8 * len(numbers)])] for whole in everyone
        ]
        said = [part[-1].view(torch.int64).tolist() for part in parts]
        found = max((tuple(numbers[1:]) for numbers in said), default=())
        self._only_loaders = not self._counts and bool(said[0][0] and said[-1][0])
        states = [tuple(part[:-1]) for part in parts]
        return [
            generators.advanced(state, found)
            if stream in (0, len(states) - 1) and not said[stream][0]
            else state
            for stream, state in enumerate(states)
        ]


def _added(a: Counts, b: Counts) -> Counts:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _sum(counts) -> Counts | None:
    """None if there are no counts."""
    listed = list(counts)
    return reduce(_added, listed) if listed else None


@contextmanager
def layers_kept(model: StagedLayers) -> Iterator[None]:
    """Restores buffers and attributes of layers on exit, and switches off DeepSpeed's checkpointing, which counts
    forwards. What a layer changes in place in a list stays changed."""
    interval, model.activation_checkpoint_interval = model.activation_checkpoint_interval, 0
    buffers = Buffers({**model.layers_here(), "loss": model.loss_fn})
    attributes = [(vars(module), {**vars(module)}) for module in buffers.modules.values()]
    before = buffers.now()
    try:
        yield
    finally:
        buffers.restore(before)
        for now, kept in attributes:
            for name in now.keys() - kept.keys():
                del now[name]
            now.update(kept)
        model.activation_checkpoint_interval = interval
