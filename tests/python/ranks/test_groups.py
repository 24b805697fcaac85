# SPDX-License-Identifier: Apache-2.0
"""How long ranks wait for each other: as long as the process group that the script has made."""

from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from ostinato.deepspeed.section.config import parse_section
from ostinato.groups import timeout_of


@contextmanager
def world_of_one(**options):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, **options)
    try:
        yield
    finally:
        dist.destroy_process_group()


def section(**keys):
    return parse_section({"plan": "plan.json", **keys}, "ds_config.json")


def test_as_long_as_the_script_has_said():
    with world_of_one(timeout=timedelta(seconds=77)):
        assert timeout_of() == section().timeout_s == 77
        assert section(timeout_s=5).timeout_s == 5
        assert timeout_of(dist.new_group([0], timeout=timedelta(seconds=9))) == 9


def test_as_torch_where_it_has_not():
    torchs = dist.default_pg_timeout.total_seconds()
    assert timeout_of() == section().timeout_s == torchs  # before there are groups
    with world_of_one():
        assert timeout_of() == torchs
