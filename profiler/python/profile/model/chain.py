# SPDX-License-Identifier: Apache-2.0
"""What is measured of a model: its distinct layers, and the rows that repeat them, with who reads whose
output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.profile.model.layer import Layer
from ostinato.profile.model.tensors import tensors

Source = tuple[int, int] | None  # a row and which of its output tensors; None: an input of the model


@dataclass
class Chain:
    layers: list[Layer] = field(default_factory=list)  # one a distinct layer
    # One a layer of the model: its name, and what it is.
    rows: list[tuple[str, Layer]] = field(default_factory=list)
    digest: str = ""
    digests: list[str] = field(default_factory=list)  # by row; empty: the model is no list of layers
    built: list[Any] = field(default_factory=list)  # by row: what build.unlike() says
    reads: list[list[Source]] | None = None  # by row and input tensor; None: each row reads the one before it
    after: list[dict[int, int]] | None = None  # by row: the rows that it reads, and bytes; as `reads`
    # By row of a graph: state that an earlier row reads too, and what of it is trained; empty: the model is a list.
    tied: list[tuple[list[Any], list[Any]]] = field(default_factory=list)

    def sources(self) -> list[list[Source]]:
        """Of each row, in the order of tensors(inputs)."""
        if self.reads is not None:
            return self.reads
        counts = [sum(1 for _ in tensors(layer.inputs)) for _, layer in self.rows]
        return [
            [(row - 1, number) if row else None for number in range(count)]
            for row, count in enumerate(counts)
        ]
