# SPDX-License-Identifier: Apache-2.0
"""What several layers share beside tensors that they hand on: a dictionary of the script's, a counter, a generator of random numbers.

    shared = SharedState(model, stages, stock)
    shared.begin()                     # the first step
    ...
    said = shared.end()                # what changed in it, and whose order among these layers is another one than in 1F1B

Each rank has its own, and in 1F1B the layers of a rank come to it one after the other, micro-batch by micro-batch.
"""

from bisect import bisect_right
from itertools import combinations
from typing import Any

from .draws import LOSS
from .module import StagedLayers
from .plans import Stage
from .script_state import Place, ScriptState


class SharedState:
    """Of one engine. `stock`: DeepSpeed's own partition."""

    def __init__(self, model: StagedLayers, stages: list[Stage], stock: list[int]):
        mine = dict(zip(model._local_layers, model._local_funcs, strict=True))
        self._last = len(model._layer_specs) - 1
        self._script = ScriptState({**dict(enumerate(model._layer_specs)), **mine, LOSS: model.loss_fn})
        self._stages, self._stock = stages, stock
        self._before: list[tuple[Place, Any]] = []

    def begin(self) -> None:
        self._before = self._script.now()

    def end(self) -> list[str]:
        found, self._before = self._script.changed(self._before), []
        return [_words(place) for place in found if any(self._otherwise(a, b) for a, b in combinations(place.layers, 2))]

    def _otherwise(self, a: Any, b: Any) -> bool:
        a, b = (self._last if layer == LOSS else layer for layer in (a, b))
        together = bisect_right(self._stock, a) == bisect_right(self._stock, b)
        pairs = [(x, y) for x in self._stages for y in self._stages if a in x.layers and b in y.layers and x.copy == y.copy]
        return any(x is not y if together else bool({*x.ranks} & {*y.ranks}) for x, y in pairs)


def _words(place: Place) -> str:
    layers = ", ".join(str(layer) for layer in place.layers if layer != LOSS)
    sharing = f"layers {layers}" + (" and the loss" if LOSS in place.layers else "")
    return (
        f"{place.words or 'an object'}, which {sharing} share, changes while they run, and they run elsewhere or in another order than in 1F1B: what reads it may "
        "have other numbers"
    )
