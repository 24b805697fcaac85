# SPDX-License-Identifier: Apache-2.0
"""Groups as they are made on accelerators, over gloo and on the CPU."""

from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist
from ostinato import groups
from torch.distributed.distributed_c10d import _get_default_group

GPU = torch.device("cuda", 0)


@dataclass(frozen=True)
class Made:
    members: tuple[int, ...]
    one_way: bool  # for transfers in one direction
    bound: bool  # the default group was bound to a device
    limit_s: float  # after which torch gives up


@contextmanager
def a_group_for_each_direction():
    """Of every link that is made meanwhile. Yields the groups that torch is asked for."""
    made, original = [], dist.new_group

    def new_group(members, *args, **options):
        made.append(
            Made(
                tuple(sorted(members)),
                "backend" in options,
                _get_default_group().bound_device_id is not None,
                options.get("timeout", dist.default_pg_timeout).total_seconds(),
            )
        )
        return original(members, *args, **options)

    with (
        mock.patch.object(groups, "backend_of_links", lambda *_: "gloo"),
        mock.patch.object(dist, "new_group", new_group),
    ):
        yield made


@contextmanager
def bound_to_a_gpu():
    """The default group, as DeepSpeed initialises it where there are GPUs."""
    default = _get_default_group()
    default.bound_device_id = GPU
    try:
        yield
        assert default.bound_device_id == GPU
    finally:
        default.bound_device_id = None
