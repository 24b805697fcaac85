# SPDX-License-Identifier: Apache-2.0
"""What ranks do outside the executor, under the section's time-out, too.

    outside = Outside(engine, watch, timeout_s)
    with outside.call("train_batch()"):
        ...
        with outside.command(ReduceGrads()):
            engine._exec_reduce_grads()

The training thread is then stuck in a collective, where nothing can interrupt it. So the process says which
part of the step it is in and which ranks that part waits for, lets all ranks of its pipeline say where they
are, and ends. It says the same where a collective fails because a peer is gone: torch's error does not name
the peer.

The time-out holds for DeepSpeed's parts of a step (reductions, clipping, the optimizer). A whole call, in
which ranks exchange facts and layers may run collectives, and a checkpoint may take any time while all ranks
give signs of life.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

from deepspeed.runtime.pipe import schedule
from ostinato.ranks.deadline import Deadline
from ostinato.ranks.frames import script_line
from ostinato.groups import is_of_a_peer
from ostinato.ranks.launcher import end_with
from ostinato.ranks.position import Position
from ostinato.ranks.presence import ranks_in_words
from ostinato.ranks.watch import Watch

from ..errors import OstinatoError
from ..upstream import Engine


class Outside:
    """Of one engine."""

    def __init__(self, engine: Engine, watch: Watch, limit_s: float):
        # Weakly, because the threads of the time-outs hold this.
        self._engine, self._watch = cast(Engine, weakref.proxy(engine)), watch
        self._number = 0  # of the step that a call is in; 0: none runs
        self._thread = threading.get_ident()  # which made the last call
        self._deadline = watch.limit(limit_s, self._held)
        self._vigil = watch.vigil(
            limit_s, lambda missed: self._held(f"{self._vigil.deadline.what}: {missed}")
        )

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Around a call of the engine: "train_batch()". The executor's waits and the parts below end earlier."""
        self._thread = threading.get_ident()
        self._number = self._engine.global_steps + 1  # DeepSpeed counts the step before it adds losses
        try:
            with self._vigil.during(what):
                yield
        finally:
            self._number = 0

    def command(self, command) -> AbstractContextManager:
        """Around one of DeepSpeed's instructions."""
        grid = self._engine.grid
        if isinstance(command, schedule.ReduceGrads):
            return self._during("adding gradients", f" over {ranks_in_words(grid.dp_group)}")
        if isinstance(command, schedule.ReduceTiedGrads):
            over = ranks_in_words(grid.pp_group)
            return self._during("adding gradients of tied layers", f" over {over}")
        return self._during(type(command).__name__, f" (norm and overflow over {self._everyone()})")

    def planning(self) -> AbstractContextManager:
        """Ranks exchange sizes, and one sends a plan: each rank waits for those that read data."""
        return self._during("planning the step", f" with {ranks_in_words(self._engine.grid.pp_group)}")

    def losses(self) -> AbstractContextManager:
        return self._during("adding losses", f" over {self._everyone()}")

    def both_directions(self) -> AbstractContextManager:
        over = ranks_in_words(self._engine.grid.pp_group)
        return self._during("adding the gradients of both directions", f" over {over}")

    @contextmanager
    def checkpoint(self, what: str) -> Iterator[None]:
        """`what`: "saving a checkpoint". Errors stay DeepSpeed's own, as the script may go on where a disk is
        full. Only where a collective fails because a peer is gone does this rank tell its peers.
        """
        try:
            with self._vigil.during(what):
                yield
        except Exception as error:
            if isinstance(error, RuntimeError) and is_of_a_peer(error):
                self._watch.give_up(f"{self._where()}: {what} over {self._everyone()} failed: {error}")
            elif not isinstance(error, OstinatoError):  # which says what it is about
                error.add_note(f"ostinato: {self._where()}: {what}")
            raise

    @contextmanager
    def _during(self, what: str, ranks: str) -> Iterator[None]:
        try:
            with self._deadline.during(what, ranks):
                yield
        except (OstinatoError, StopIteration):  # the step tells of the first; all ranks raise the second
            raise
        except Exception as error:
            self._watch.give_up(f"{self._where()}: {what}{ranks} failed: {type(error).__name__}: {error}")
            raise

    def part(self) -> Position | None:
        """The part of a step that runs now; None: none does."""
        return self._busy_with(self._deadline)

    def whole(self) -> Position | None:
        """The call or checkpoint that runs now; None: none does."""
        return self._busy_with(self._vigil.deadline)

    def _busy_with(self, deadline: Deadline) -> Position | None:
        (what, ranks), ms = deadline.call, round(1000 * deadline.lasts_s)
        if not what:
            return None
        return Position(self.where(), "", ms, what + ranks, f"{what} in {self._step()}")

    def in_the_script(self, position: Position) -> Position:
        """A position; while it waits for no rank, also the line of the script that runs: in a layer, in the data
        loader, or between steps."""
        line = "" if position.waits_for else script_line(self._thread)
        return position._replace(where=f"{position.where}, {line}") if line else position

    def where(self) -> str:
        return f"rank {self._engine.stage_id} is in {self._step()}"

    def _step(self) -> str:
        return f"step {self._number or self._engine.global_steps + 1}"

    def _everyone(self) -> str:
        return ranks_in_words(sorted({*self._engine.grid.pp_group, *self._engine.grid.dp_group}))

    def _held(self, what: str) -> None:
        end_with(f"{self._where()}: {what}", self._watch.give_up)

    def _where(self) -> str:
        engine = self._engine
        return f"rank {engine.global_rank} (pipeline rank {engine.stage_id}), {self._step()}"
