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
