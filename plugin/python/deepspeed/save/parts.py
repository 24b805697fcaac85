# SPDX-License-Identifier: Apache-2.0
"""Parts of parameters that the ranks of a sharded stage hold, or that optimizers step.

    half = Part(dimension=1, begin=2, end=4, whole=[3, 4])      # of a matrix of three rows, the right half
    pieces_of(Piece("3.weight", start=0, size=6, at=0), {"3.weight": half})     # three, of two elements each

Elements are counted row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Piece:
    """`size` elements of a parameter from `start` on, which a tensor of the optimizer has from `at` on."""

    name: str
    start: int
    size: int
    at: int


class Part(NamedTuple):
    """Of a parameter with shape `whole`, what a rank of a sharded stage holds: from `begin` to `end` along
    `dimension`."""

    dimension: int
    begin: int
    end: int
    whole: Sequence[int]

    def pieces(self, piece: Piece) -> list[Piece]:
        """`piece`, which counts elements of the part, in elements of the whole parameter."""
        if not piece.size:
            return []
        inner = prod(self.whole[self.dimension + 1 :])
        row, rows = (self.end - self.begin) * inner, self.whole[self.dimension] * inner
        made = []
        for number in range(piece.start // row, -(-(piece.start + piece.size) // row)):
            start, end = max(piece.start, number * row), min(piece.start + piece.size, (number + 1) * row)
            there = number * rows + self.begin * inner + start - number * row
            made.append(Piece(piece.name, there, end - start, piece.at + start - piece.start))
        return made


Parts = dict[str, Part]  # by parameter


def pieces_of(piece: Piece, parts: Parts) -> list[Piece]:
    """In elements of the whole parameter, which `parts` may have in part."""
    return parts[piece.name].pieces(piece) if piece.name in parts else [piece]


def whole_shape(name: str, shape: Sequence[int], parts: Parts) -> torch.Size:
    """Of a parameter that a rank holds in this shape."""
    return torch.Size(parts[name].whole if name in parts else shape)
