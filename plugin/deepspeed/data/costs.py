# SPDX-License-Identifier: Apache-2.0
"""What a micro-batch of some size costs, for the search of a step's plan.

    costs = costs_of(placement, profile, size=1024.0)     # texts; profile "": there is none
    batches, size = costs.micro_batches([512, 2048])      # as ostinato.search_sizes() takes them

Times follow the sizes that a profile was measured at (`ostinato profile --sizes`), in straight lines between them; memory and messages
grow in proportion. Without such a profile times do, too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.core import MicroBatch, Placement
from ostinato.profile.measure.by_size import Points, at

from .sizes import whole_numbers


@dataclass
class Costs:
    """`reference`: the size of the micro-batch that the placement describes; 0: the mean of the first step's. `curves`: of blocks, what their
    layers take; `times`: of the same blocks, what the placement says of the reference.
    """

    reference: float = 0.0
    curves: Mapping[str, Points] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)

    def micro_batches(self, sizes: Sequence[float]) -> tuple[list[MicroBatch], int]:
        """Each micro-batch, and the size of the reference."""
        self.reference = self.reference or sum(sizes) / len(sizes)
        whole, reference = whole_numbers(sizes, self.reference)
        if not self.curves:
            return list(whole), reference
        return [{"size": w, "times": self._times(size)} for w, size in zip(whole, sizes, strict=True)], reference

    def _times(self, size: float) -> dict[str, int]:
        return {block: round(self.times[block] * at(points, size) / at(points, self.reference)) for block, points in self.curves.items()}


def costs_of(placement: str, profile: str = "", size: float = 0.0) -> Costs:
    """`placement`: the text of the file; `profile`: JSON with its "tokens" and "sizes". `size` comes before what the profile says."""
    if not profile:
        return Costs(size)
    measured = json.loads(profile)
    reference = size or float(measured.get("tokens", 0))
    rows = measured.get("sizes", [])
    if len(rows) < 2 or not reference:
        return Costs(reference)
    written = Placement.from_text(placement)
    table, planned = written.to_dict(), written.times
    again = [_share_again(layer) for layer in measured.get("layers", [])]
    curves, times = {}, {}
    for block in table["blocks"]:
        stages = [stage for stage in table.get("stages", ()) if stage["name"] == block.get("stage", block["name"])]
        layers = [i for stage in stages for run in _runs(stage["layers"]) for i in range(*run)]
        recomputes = any(stage.get("recompute") for stage in stages)
        points = [(row["size"], _taken(row, block.get("kind", "other"), layers, again if recomputes else None)) for row in rows]
        if at(points, reference) > 0:
            curves[block["name"]], times[block["name"]] = points, planned[block["name"]]
    return Costs(reference, curves, times)


def _runs(layers: list) -> list:
    return layers if isinstance(layers[0], list) else [layers]


def _share_again(layer: dict) -> float:
    """Of a layer's first forward, what it takes to run it again for a backward."""
    first = layer["forward"]["median"]
    return layer["recompute"] / first if "recompute" in layer and first else 1.0


def _taken(row: dict, kind: str, layers: list[int], again: list[float] | None) -> float:
    """`again`: None where the stage keeps; by layer, the share of its forward that its backward runs again; too short: all of it."""
    forward, backward = (sum(row[phase][i] for i in layers) for phase in ("forward", "backward"))
    if kind == "forward" or again is None:
        return forward if kind == "forward" else backward
    return backward + sum(row["forward"][i] * (again[i] if i < len(again) else 1.0) for i in layers)
