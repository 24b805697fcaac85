"""Worlds as in tests/python; one stock training for each model and optimizer."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from support import worlds as support_worlds  # noqa: E402

LIMIT, RUNS = 90, 200  # seconds of a training, trainings of a world: trainings.py ends the groups of each


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="every model of the zoo under every placement, and many drawn models")
    parser.addoption("--table", metavar="FILE", help="write the table of verdicts into FILE, e.g. docs/zoo.md")


@pytest.fixture(scope="session")
def worlds():
    with support_worlds.World(2, LIMIT, RUNS) as two, support_worlds.World(4, LIMIT, RUNS) as four:
        yield {2: two, 4: four}
