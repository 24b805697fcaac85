# SPDX-License-Identifier: Apache-2.0
"""Which layers draw random numbers while a plan runs, and from which generators.

    draws = Draws()
    draws.enter(3)             # layer 3 begins: draws since the last call belong to what ran before it
    draws.leave()              # draws from here on do not count
    draws.new()                # {3: ["torch"]}: what was seen since the last call

A layer draws if it changes the state of a generator: a module's class does not show functional dropout, and a
`Dropout` that is switched off draws nothing. In DeepSpeed's own 1F1B each rank draws from its own generators,
for the layers of its own partition and in the order of micro-batches; layers that run on a different rank
draw different random numbers.
"""

from typing import Protocol, runtime_checkable

from .random_state import KINDS, same, states

TORCHS = set(KINDS[:3])  # torch's own generators
# What may draw besides single layers; `LAYERS`: some layers, not known which.
BATCH, LOSS, LAYERS, BACKWARD = "the batch", "the loss", "layers", "backwards"


@runtime_checkable
class Watcher(Protocol):
    """Is told where layers draw different random numbers when they run once more."""

    def drawn_anew(self) -> None: ...


class Draws:
    """Of one rank."""

    def __init__(self):
        self._now: int | str | None = None
        self._states: tuple = ()
        self._new: dict[int | str, set[str]] = {}

    def begin(self, _batch: int) -> None:
        self.leave()

    def end(self) -> None:
        """A stage's forward has ended: what runs next belongs to the engine, until leave()."""
        self.enter(LAYERS)

    def enter(self, what: int | str) -> None:
        """`what`: a layer's index in the model, or a name from above. O(size of the generators' states):
        tens of microseconds."""
        now = states()
        self._note(now)
        self._now, self._states = what, now

    def leave(self) -> None:
        if self._now is None:
            return
        self._note(states())
        self._now, self._states = None, ()

    def _note(self, states_now: tuple) -> None:
        """What ran until now has drawn if the states have changed."""
        if self._now is None:
            return
        changed = {
            kind for kind, was, now in zip(KINDS, self._states, states_now, strict=True) if not same(was, now)
        }
        if changed:
            self._drew(self._now, changed, states_now)

    def _drew(self, what: int | str, kinds: set[str], _states_now: tuple) -> None:
        self._new.setdefault(what, set()).update(kinds)

    def forget(self, kinds: set[str]) -> None:
        """Drops what was seen of these kinds."""
        self._new = {what: left for what, seen in self._new.items() if (left := seen - kinds)}

    def new(self) -> dict[int | str, list[str]]:
        found, self._new = self._new, {}
        return {what: sorted(kinds) for what, kinds in found.items()}


def merged(all_draws, with_batches: bool = False) -> dict:
    """The draws of several ranks. Reading batches counts only with streams: else a loader draws on the ranks
    that read, as in 1F1B."""
    found: dict = {}
    for draws in all_draws:
        for what, kinds in draws.items():
            if with_batches or what != BATCH:
                found.setdefault(what, set()).update(kinds)
    return found
