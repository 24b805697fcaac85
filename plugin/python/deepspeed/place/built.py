# SPDX-License-Identifier: Apache-2.0
"""The random states from which DeepSpeed's partition builds layers: the rank to which a layer moves builds it from
the same, so that what its constructor draws is equal even where it is neither a parameter nor a buffer.

    with noted() as built:                  # while PipelineModule.__init__() runs
        original(model, layers=layers)
    vars(model)[BUILT] = built
    states = states_of(model, {"3": layers[3]})     # {"3": states}; without what has built itself
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..randomness.random_state import states
from ..upstream import Model

BUILT = "_ostinato_built"


@contextmanager
def noted() -> Iterator[list[tuple[Any, tuple]]]:
    """Each LayerSpec that is built meanwhile, with the random states before: in the order in which they are built,
    for the same one may stand for several layers."""
    from deepspeed.runtime.pipe.module import LayerSpec

    build, built = LayerSpec.build, []

    def noting(spec, *args, **kwargs):
        built.append((spec, states()))
        return build(spec, *args, **kwargs)

    LayerSpec.build = noting
    try:
        yield built
    finally:
        LayerSpec.build = build


def states_of(model: Model, specs: dict[str, Any]) -> dict[str, tuple]:
    """By name of a module, of those that were noted. `specs`: of all modules of this rank in DeepSpeed's partition,
    in the order in which it has built them."""
    waiting = list(vars(model).get(BUILT, ()))
    found = {}
    for name, spec in specs.items():
        place = next((i for i, (built, _) in enumerate(waiting) if built is spec), None)
        if place is not None:
            found[name] = waiting.pop(place)[1]
    return found
