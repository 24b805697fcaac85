"""Worlds of processes, each started when the first test asks for it and kept until the last."""

import pytest
from support.worlds import World


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
    """What DeepSpeed alone trains: stock(world, options), once for all tests that differ in the placement only."""
    from support.training import train

    results = {}

    def run(world, options):
        key = (world.size, repr(options))
        if key not in results:
            results[key] = world.run(train, options)
        return results[key]

    return run
