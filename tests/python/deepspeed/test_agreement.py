# SPDX-License-Identifier: Apache-2.0
"""What all ranks say to each other through the store, before there is an engine."""

import pytest
import torch.distributed as dist
from ostinato.deepspeed.section.agreement import Statement, agree
from ostinato.deepspeed.errors import OstinatoError
from ostinato.ranks import reports


class Store:
    """Of one rank; the process that holds it ends at the first call of the method `last`."""

    def __init__(self, last: str):
        self._store, self._last = dist.HashStore(), last

    def __getattr__(self, name):
        def lost(*_):
            raise dist.DistNetworkError("Connection reset by peer")

        return lost if name == self._last else getattr(self._store, name)


@pytest.fixture
def one_rank(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)


@pytest.mark.parametrize("last", ["set", "wait", "get", "add"])
def test_a_process_that_ends_with_the_store_is_named(monkeypatch, one_rank, last):
    monkeypatch.setattr(reports, "_get_default_store", lambda: Store(last))
    with pytest.raises(
        OstinatoError, match=r"its process \(rank 0, or the launcher's agent\) is stopped or gone"
    ):
        agree(Statement(), 1.0)


def test_alone(monkeypatch, one_rank):
    monkeypatch.setattr(reports, "_get_default_store", lambda: Store("no method"))
    assert [said.plan for said in agree(Statement(plan="ab"), 1.0)] == ["ab"]
