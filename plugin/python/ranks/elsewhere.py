# SPDX-License-Identifier: Apache-2.0
"""Where other ranks are while this rank waits long: in a collective it does not know for which rank, and in a chain
of ranks each waits for the next.

    elsewhere = Elsewhere(presence)
    elsewhere.found(store, position)     # None until all have answered, or had time to; then one text per rank that is elsewhere

The thread of a watch calls it once per period. It leaves out ranks that themselves wait for another rank, and
ranks in the same part of the same step.
"""

from ostinato.errors import counted

from .position import Position
from .presence import Presence, ranks_in_words

LOOKS = 5  # periods to wait for answers
NAMED = 4  # ranks to name, at most


class Elsewhere:
    """Of one rank."""

    def __init__(self, presence: Presence):
        self._presence = presence
        self._number, self._looks = 0, 0  # of the open question; 0: there is none

    def found(self, store, position: Position) -> list[str] | None:
        """Raises RuntimeError where the store is gone."""
        if not self._number:
            self._number, self._looks = self._presence.ask(store), 0
        answers = self._presence.answers(store, self._number)
        self._looks += 1
        if None in answers.values() and self._looks < LOOKS:
            return None
        self._number = 0
        silent = [rank for rank, answer in answers.items() if answer is None]
        others = [str(answer) for answer in answers.values() if answer and not _with(position, answer)]
        words = others[:NAMED] + [f"{counted(len(others) - NAMED, 'more rank')} elsewhere"] * (
            len(others) > NAMED
        )
        return words + [f"{ranks_in_words(silent)} do{'es' * (len(silent) == 1)} not answer"] * bool(silent)


def _with(mine: Position, other: Position) -> bool:
    """Whether a rank is in the same place, or itself waits for another rank."""
    return bool(other.waits_for) or (bool(mine.call) and mine.call == other.call)
