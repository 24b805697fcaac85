# SPDX-License-Identifier: Apache-2.0
"""The random states from which DeepSpeed's partition builds layers: the rank to which a layer moves builds it from
the same, so that what its constructor draws is equal even where it is neither a parameter nor a buffer.

    with noted(model) as built:             # while PipelineModule.__init__() runs
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
Built = list[tuple[Any, tuple[Any, ...]]]


@contextmanager
def noted(model: Model) -> Iterator[Built]:
    """Each LayerSpec that the model builds for its layers, with the random states before it: in build order,
    as one spec may stand for several layers. Leaves out those that DeepSpeed builds earlier to count
    parameters.
    """
    build, built = model._build, Built()

    def noting() -> None:
        with _noting(model._layer_specs, built):
            build()

    vars(model)["_build"] = noting
    try:
        yield built
    finally:
        vars(model).pop("_build", None)


@contextmanager
def _noting(specs: list[Any], built: Built) -> Iterator[None]:
    """On each instance: its class may override build(), which also draws."""
    from deepspeed.runtime.pipe.module import LayerSpec

    theirs = {id(spec): (spec, vars(spec).get("build")) for spec in specs if isinstance(spec, LayerSpec)}
    for spec, _ in theirs.values():
        vars(spec)["build"] = _noting_build(spec, built)
    try:
        yield
    finally:
        for spec, own in theirs.values():
            del vars(spec)["build"]
            vars(spec).update({"build": own} if own is not None else {})


def _noting_build(spec: Any, built: Built) -> Any:
    build = spec.build

    def noting(*args: Any, **kwargs: Any) -> Any:
        built.append((spec, states()))
        return build(*args, **kwargs)

    return noting


def states_of(model: Model, specs: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """States that were noted, by module name. `specs`: of all modules of this rank in DeepSpeed's partition,
    in the order in which it has built them."""
    waiting = list(vars(model).get(BUILT, ()))
    found = {}
    for name, spec in specs.items():
        place = next((i for i, (built, _) in enumerate(waiting) if built is spec), None)
        if place is not None:
            found[name] = waiting.pop(place)[1]
    return found
