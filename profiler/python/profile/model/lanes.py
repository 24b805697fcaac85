# SPDX-License-Identifier: Apache-2.0
"""Which layers run on a lane of their device, beside what it computes: layers of classes that say so
(ostinato.nn.on_lane)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

ATTRIBUTE = "ostinato_lane"


def lane_of(layer: Any) -> str:
    """Of a LayerSpec before it is built, of a module, or of a callable; "": it computes."""
    kind = getattr(layer, "typename", type(layer))
    return getattr(kind, ATTRIBUTE, "") if isinstance(kind, type) else ""


def mark_lanes(rows: list[Any], layers: Iterable[Any]) -> list[Any]:
    """`layers`: of the rows; none where the rows are operators. A layer with parameters computes, whatever its class
    says: a training updates them with the rest of its rank. So do all layers of its lane, as two threads must not
    exchange with the same ranks."""
    lanes = [(row, "" if layer is None else lane_of(layer)) for row, layer in zip_longest(rows, layers)]
    computing = {lane for row, lane in lanes if row.parameters}
    for row, lane in lanes:
        row.lane = "" if lane in computing else lane
    return rows
