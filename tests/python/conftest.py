# SPDX-License-Identifier: Apache-2.0
"""Worlds of processes, each started when the first test asks for it and kept until the last."""

import hypothesis
import pytest
from support.worlds import World

# A machine may stall for seconds; and what is drawn is the same in every run, so that one that fails can be repeated.
hypothesis.settings.register_profile(
    "everyday", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("everyday")


@pytest.fixture(scope="session")
def world2():
    with World(2) as world:
        yield world


@pytest.fixture(scope="session")
def world4():
    with World(4) as world:
        yield world


@pytest.fixture(scope="session")
def worlds(world2, world4):
    return {2: world2, 4: world4}


@pytest.fixture(scope="session")
def stock():
    """What DeepSpeed alone does: stock(world, options, function=train), once for all tests that differ in the
    placement only. `arguments` of the function are no part of what is asked for: a folder to write to."""
    from support.training import train

    results = {}

    def run(world, options, function=train, *arguments):
        key = (world.size, function.__module__, function.__name__, repr(options))
        if key not in results:
            results[key] = world.run(function, options, *arguments)
        return results[key]

    return run


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """saved(world, options, save): (folder, results) of a training that writes a checkpoint, once for all
    tests that read it."""
    results = {}

    def run(world, options, save):
        key = (world.size, save.__module__, save.__name__, repr(options))
        if key not in results:
            folder = str(tmp_path_factory.mktemp("saved"))
            results[key] = folder, world.run(save, options, folder)
        return results[key]

    return run
