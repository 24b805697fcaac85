# SPDX-License-Identifier: Apache-2.0
"""Values that change without being bound anew, and how they become again what they were: containers and generators of random numbers."""

import random
from collections import OrderedDict, deque
from typing import Any

import numpy
import torch

NUMBERS = (bool, int, float, complex, str)
CONTAINERS = (list, dict, OrderedDict, set, deque)


def is_another(was: Any, now: Any, contents: dict[int, Any]) -> bool:
    if was is now:
        return id(now) in contents and not same_items(contents[id(now)], now)
    return type(was) is not type(now) or not isinstance(now, NUMBERS) or was != now


def same_items(was: Any, now: Any) -> bool:
    if isinstance(now, set):
        return was == now
    pairs = [(was, now)] if not isinstance(now, dict) else [(was, now), (was.values(), now.values())]
    return len(was) == len(now) and all(a is b for x, y in pairs for a, b in zip(x, y, strict=True))


def generators_of(value: Any) -> list[tuple[Any, Any]]:
    """A generator that an attribute holds, by itself or in a container, and its state."""
    if type(value) in CONTAINERS:
        return [found for item in (value.values() if isinstance(value, dict) else value) for found in generators_of(item)]
    if isinstance(value, torch.Generator):
        return [(value, value.get_state())]
    if isinstance(value, random.Random):
        return [(value, value.getstate())]
    if isinstance(value, numpy.random.Generator):
        return [(value, value.bit_generator.state)]
    return [(value, value.get_state())] if isinstance(value, numpy.random.RandomState) else []


def set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def fill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
        return
    container.clear()
    container.extend(content) if isinstance(container, deque) else container.update(content)
