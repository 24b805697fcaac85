# SPDX-License-Identifier: Apache-2.0
"""Where other ranks are while this rank waits long: in a collective it does not know for which rank, and in a chain
of ranks each waits for the next.

    elsewhere = Elsewhere(presence)
    elsewhere.found(store, position)     # None until all have answered, or had time to; then one text per rank that is elsewhere

The thread of a watch calls it once per period. It leaves out ranks that themselves wait for another rank, and
ranks in the same part of the same step.
"""

import re

from ostinato.errors import counted

from .presence import Presence, ranks_in_words

LOOKS = 5  # periods to wait for answers
NAMED = 4  # ranks to name, at most
_BUSY = re.compile(
    r"rank \d+ is (?P<step>in step \d+), busy \d+ ms with (?P<what>.*?)(?: over | \(|$)"
)  # as Outside says it
_WAITS = re.compile(r", waiting \d+ ms for ")  # as executors do


def in_a_collective(position: str) -> bool:
    return _BUSY.match(position) is not None


class Elsewhere:
    """Of one rank."""

    def __init__(self, presence: Presence):
        self._presence = presence
        self._number, self._looks = 0, 0  # of the open question; 0: there is none

    def found(self, store, position: str) -> list[str] | None:
        """Raises RuntimeError where the store is gone."""
        if not self._number:
            self._number, self._looks = self._presence.ask(store), 0
        answers = self._presence.answers(store, self._number)
        self._looks += 1
        if None in answers.values() and self._looks < LOOKS:
            return None
        self._number = 0
        silent = [rank for rank, answer in answers.items() if answer is None]
        others = [answer for answer in answers.values() if answer is not None and not _with(position, answer)]
        words = others[:NAMED] + [f"{counted(len(others) - NAMED, 'more rank')} elsewhere"] * (
            len(others) > NAMED
        )
        return words + [f"{ranks_in_words(silent)} do{'es' * (len(silent) == 1)} not answer"] * bool(silent)


def _with(mine: str, other: str) -> bool:
    """Whether a rank is in the same place, or itself waits for another rank."""
    here, there = _BUSY.match(mine), _BUSY.match(other)
    return _WAITS.search(other) is not None or (
        here is not None and there is not None and here.groups() == there.groups()
    )
