# SPDX-License-Identifier: Apache-2.0
"""Names in the store on which a group of ranks agrees without communicating, and that no other group uses.

    agreed("pipeline", [1, 2])       # "pipeline 0 of 3c9d...", on ranks 1 and 2; then "pipeline 1 of 3c9d..."

All ranks of a world share one store, and a rank may be in several groups: a single counter for all groups would
differ between ranks.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

_made: Counter = Counter()


def agreed(what: str, ranks: Sequence[int]) -> str:
    """`ranks`: global, in the same order on all of them; each must ask equally often for `what` with these
    ranks."""
    group = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:16]
    number = _made[what, group]
    _made[what, group] += 1
    return f"{what} {number} of {group}"
