# SPDX-License-Identifier: Apache-2.0
"""Which outputs of a layer get a gradient: only those that some later layer learns from.

Found by a backward of each layer, the last one first: what reaches its inputs is what arrives at the outputs
of those before it.
"""

from __future__ import annotations

from ostinato.profile.model.chain import Chain
from ostinato.profile.model.layer import Layer, run_both_ways


def reached_inputs(layer: Layer) -> list[bool]:
    """By tensor of the inputs: whether the layer's backward gives it a gradient."""
    given = iter(run_both_ways(layer))
    return [reached and next(given).grad is not None for reached in layer.reached]


def find_wanted(chain: Chain) -> None:
    """Sets `wanted` of every layer; of layers that the model has several times, what one of them needs."""
    sources = chain.sources()
    read = {source for row in sources for source in row if source is not None}
    arrives: set[tuple[int, int]] = set()
    known: dict[int, list[bool]] = {}
    for row in range(len(chain.rows) - 1, -1, -1):
        layer = chain.rows[row][1]
        if row < len(chain.rows) - 1:
            here = [(row, n) in arrives or (row, n) not in read for n in range(len(layer.flows))]
            wanted = (
                here if layer.wanted is None else [a or b for a, b in zip(layer.wanted, here, strict=True)]
            )
            if wanted != layer.wanted:
                layer.wanted = wanted
                known.pop(id(layer), None)
        if id(layer) not in known:
            known[id(layer)] = reached_inputs(layer)
        arrives.update(
            source
            for source, gets in zip(sources[row], known[id(layer)], strict=False)
            if gets and source is not None
        )
