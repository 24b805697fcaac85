# SPDX-License-Identifier: Apache-2.0
"""Values that change without being bound anew, and how they become again what they were: containers, arrays of NumPy's and generators of
random numbers.

    was = content_of(container)          # of list, dict, set, deque, what is derived from them, or an array
    ...
    if not same_content(was, content_of(container)):
        fill(container, was)
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch.quasirandom import SobolEngine

NUMBERS = (bool, int, float, complex, str)
CONTAINERS = (OrderedDict, dict, list, set, deque)  # what is derived from OrderedDict is its, and not dict's
LARGEST = 1 << 20  # elements of an array or tensor of which a copy is kept
DEEPEST = 8  # containers in each other


def is_container(value: Any) -> bool:
    if isinstance(value, numpy.ndarray):
        return value.flags.writeable and value.size <= LARGEST
    return isinstance(value, CONTAINERS)


def held_in(container: Any) -> Iterable[Any]:
    """Of an array nothing, for it holds numbers."""
    if isinstance(container, numpy.ndarray):
        return ()
    base = _base(container)
    return list(base.values(container)) if issubclass(base, dict) else list(base.__iter__(container))


def content_of(container: Any) -> Any:
    """A copy, shallow, whatever a derived class makes of copying. A dictionary's are pairs."""
    if isinstance(container, numpy.ndarray):
        return container.copy()
    base = _base(container)
    if issubclass(base, dict):
        return list(base.items(container))
    return set(container) if base is set else list(base.__iter__(container))


def same_content(was: Any, now: Any) -> bool:
    """Of two of content_of(): the same objects; numbers with the same bits in an array."""
    if isinstance(now, numpy.ndarray):
        return was.shape == now.shape and was.dtype == now.dtype and was.tobytes() == now.tobytes()
    if isinstance(now, set):
        return was == now
    return len(was) == len(now) and all(a is b or _same_pair(a, b) for a, b in zip(was, now, strict=True))


def fill(container: Any, content: Any) -> None:
    if isinstance(container, numpy.ndarray):
        container[...] = content
        return
    base: Any = _base(container)
    base.clear(container)
    if issubclass(base, dict):
        for key, value in content:
            base.__setitem__(container, key, value)
    else:
        (base.update if base is set else base.extend)(container, content)


def is_another(was: Any, now: Any, contents: dict[int, Any]) -> bool:
    """`contents`: of containers, by id."""
    if was is now:
        return id(now) in contents and not same_content(contents[id(now)], content_of(now))
    return type(was) is not type(now) or not isinstance(now, NUMBERS) or was != now


def generators_of(value: Any, depth: int = DEEPEST) -> list[tuple[Any, Any]]:
    """A generator that an attribute holds, by itself or in a container, and its state."""
    if isinstance(value, CONTAINERS):
        return [found for item in held_in(value) for found in generators_of(item, depth - 1)] if depth else []
    if isinstance(value, torch.Generator):
        return [(value, value.get_state())]
    if isinstance(value, random.Random):
        return [(value, value.getstate())]
    if isinstance(value, numpy.random.Generator):
        return [(value, value.bit_generator.state)]
    if isinstance(value, SobolEngine):
        return [(value, (value.num_generated, *value.quasi.tolist()))]
    return [(value, value.get_state())] if isinstance(value, numpy.random.RandomState) else []


def set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, SobolEngine):
        generator.num_generated, generator.quasi = state[0], torch.tensor(state[1:], dtype=generator.quasi.dtype)
    else:
        generator.set_state(state)


def _base(container: Any) -> Any:
    return next(base for base in CONTAINERS if isinstance(container, base))


def _same_pair(a: Any, b: Any) -> bool:
    return type(a) is type(b) is tuple and len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
