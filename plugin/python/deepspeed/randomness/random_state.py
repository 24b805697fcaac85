# SPDX-License-Identifier: Apache-2.0
"""The states of this process's random number generators: torch's, the accelerator's, Python's and
NumPy's.

with random_state_kept():              # restores the random states on exit
    layer = spec.build()

with draws_of(original) as original:   # the same, except for what `original` draws
    import something                   # (a module may draw when it is imported)
    original.states = kept             # optional: what it draws from
    original(engine)

drawn = foreign()                      # the states that torch does not know
with foreign_again(drawn):             # draws the same numbers again, and restores the states on exit
    layer(inputs)
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
import torch

from . import generators

KINDS = ("torch", "the accelerator", "a tracker", "Python's random", "NumPy")


def states() -> tuple:
    """In the order of KINDS; None where the accelerator is the CPU. O(size of the states): tens of
    microseconds."""
    host, *accelerator = generators.own()
    return host, accelerator[0] if accelerator else None, generators.tracked(), *foreign()


def torchs(kept: tuple) -> generators.State:
    """Of states(), those of torch's generators, including trackers'."""
    host, accelerator, tracked, *_ = kept
    return host, *([] if accelerator is None else [accelerator]), *tracked


def become(kept: tuple) -> None:
    generators.become(torchs(kept))
    _become_foreign(kept[3:])


def foreign() -> tuple:
    """Python's and NumPy's states, which torch's checkpointing does not restore."""
    return random.getstate(), numpy.random.get_state()


def same(was, now) -> bool:
    """Of one generator, or of those in trackers."""
    if torch.is_tensor(was):
        return torch.equal(was, now)
    if isinstance(was, tuple) and all(map(torch.is_tensor, was)):
        return generators.same(was, now)
    if isinstance(was, tuple) and len(was) == 5:  # NumPy's, with an array in it
        return was[0] == now[0] and was[2:] == now[2:] and numpy.array_equal(was[1], now[1])
    return was == now


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the random states on exit."""
    kept = states()
    try:
        yield
    finally:
        become(kept)


@contextmanager
def foreign_again(drawn: tuple) -> Iterator[None]:
    """Starts Python's and NumPy's generators from `drawn`, and restores them on exit."""
    now = foreign()
    _become_foreign(drawn)
    try:
        yield
    finally:
        _become_foreign(now)


class Drawing:
    """`original`, which draws from `states`, and leaves there what comes next."""

    def __init__(self, original: Callable):
        self._original, self._inside = original, True
        self.states = states()

    def __call__(self, *args, **kwargs):
        if not self._inside:
            return self._original(*args, **kwargs)
        become(self.states)
        try:
            return self._original(*args, **kwargs)
        finally:
            self.states = states()

    def leave(self) -> None:
        self._inside = False
        become(self.states)


@contextmanager
def draws_of(original: Callable) -> Iterator[Drawing]:
    """Yields a version of `original`. Restores the random states on exit, except for what calls of that
    version have drawn."""
    drawing = Drawing(original)
    try:
        yield drawing
    finally:
        drawing.leave()


def _become_foreign(kept: tuple) -> None:
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])
