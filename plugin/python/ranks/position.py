# SPDX-License-Identifier: Apache-2.0
"""Where a rank is.

position = Position("rank 0 is in step 7", busy_with="adding losses over ranks 0, 1", ms=31000, call="adding losses in step 7")
print(position)      # rank 0 is in step 7, busy 31000 ms with adding losses over ranks 0, 1
"""

import json
from typing import NamedTuple


class Position(NamedTuple):
    """At most one of `waits_for` and `busy_with`; `ms`: for how long. `call`: equal on ranks that are in the
    same collective."""

    where: str
    waits_for: str = ""  # what another rank does first
    ms: int = 0
    busy_with: str = ""  # a call that all ranks make
    call: str = ""

    def __str__(self) -> str:
        if self.waits_for:
            return f"{self.where}, waiting {self.ms} ms for {self.waits_for}"
        return f"{self.where}, busy {self.ms} ms with {self.busy_with}" if self.busy_with else self.where

    def to_text(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_text(text: str) -> "Position":
        return Position(*json.loads(text))
