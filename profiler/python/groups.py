# SPDX-License-Identifier: Apache-2.0
"""Process groups besides the launch's: of some of its ranks, and of two ranks for each direction of a link.

    group = make_group([0, 1], among=half)                     # on every rank of `half`
    links = link_groups(program.links, ranks, group, device)   # {peer: (to it, from it)}, as Executor(links=...) takes them

On an accelerator a process group runs its transfers on its own streams: one for each pair of ranks, or one
for all if the default group was initialised with a device. A transfer then waits for all that were issued
before it, to any rank. So each direction of a link has its own group. Its stream comes before the compute
streams and takes few of the device's processors from them. Gloo has no streams, and one group serves all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BackendConfig, _get_default_group, _world

# By pipeline rank: to it, and from it; None where nothing goes that way.
Links = dict[int, tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]]

# Blocks of threads that a transfer of NCCL's may occupy, and so processors that it takes from what computes
# beside it. The environment's NCCL_MAX_CTAS comes before it.
TRANSFER_CTAS = 4

# Groups that some ranks of the world have made here, as the ranks have agreed; and the distance of their numbers from
# those that torch gives, and from each other.
_made_alone = 0
_APART = 1 << 32


def everyones(mine: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """`mine` of every rank of the group (None: the world), by rank. All of them must call it, each with
    something to pickle."""
    held: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(held, mine, group=group)
    return held


def timeout_of(group: dist.ProcessGroup | None = None) -> float:
    """Seconds after which torch gives up a collective of the group (None: the world): what init_process_group() was
    given, DeepSpeed's DEEPSPEED_TIMEOUT, or torch's default, which also stands where there is no group yet."""
    if not dist.is_initialized():
        return dist.default_pg_timeout.total_seconds()
    group = group or _get_default_group()
    options = [getattr(group._get_backend(device), "options", None) for device in group._device_types]
    limits = [made._timeout for made in options if made is not None]
    return min(limits, default=dist.default_pg_timeout).total_seconds()


def later_than(timeout_s: float) -> timedelta:
    """The time-out of a group in which ranks give up by themselves after `timeout_s`, or, while groups are made, once
    a rank has given no sign of life for that long (ranks/presence.py): then they say for whom they wait, where torch's
    error says less, and NCCL's ends the process."""
    return timedelta(seconds=2 * timeout_s + 60)


def is_of_a_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank is gone or late. Gloo's errors have no separate type."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error) or str(error).startswith("Gloo")


@contextmanager
def unbound() -> Iterator[None]:
    """Groups that are made meanwhile have separate communicators, which start at their first use.

    DeepSpeed initialises the default group with the rank's GPU. torch then splits its communicator for each
    new group, which every rank of the world must take part in, and hangs where only the members make it.
    """
    default = _get_default_group()
    device = default.bound_device_id
    if device is not None:
        default.bound_device_id = None
    try:
        yield
    finally:
        if device is not None:
            default.bound_device_id = device


@contextmanager
def counting_from(first: int) -> Iterator[None]:
    """torch numbers the groups that are made meanwhile from there on."""
    count, _world.group_count = _world.group_count, first
    try:
        yield
    finally:
        _world.group_count = count


def make_group(
    members: Sequence[int], among: dist.ProcessGroup | None = None, **options: Any
) -> dist.ProcessGroup | None:
    """A group of the global ranks `members`; None on all other ranks. Every rank of `among` (None: the world) must
    call it. `options`: of torch's new_group().

    torch names a group that some ranks of the world make alone by their numbers and by a count, of the groups
    that a rank is in or, from 2.14 on, has made. Where the counts differ, the members would wait for each other
    under different names, for ever. So both are made equal before. The groups that a rank has made are counted
    on as if this one had not been: those of the whole world have their number for a name.
    """
    global _made_alone
    callers = dist.get_process_group_ranks(among or dist.group.WORLD)
    if len(callers) == dist.get_world_size():
        with unbound():
            group = dist.new_group(members, **options)
        return group if dist.get_rank() in members else None
    held, alone = zip(*everyones((len(_world.pg_names), _made_alone), among), strict=True)
    _made_alone = max(alone) + 1
    if dist.get_rank() not in members:
        return None
    in_groups = {rank: held[callers.index(rank)] for rank in members}
    most, least = max(in_groups.values()), min(in_groups.values())
    needed = most - in_groups[dist.get_rank()]
    with unbound(), counting_from(_made_alone * _APART):
        # As many on every rank, so that all have made the same number; those that it needs stay for a while.
        fillers = [
            dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
            for _ in range(most - least)
        ]
        for filler in fillers[needed:]:
            dist.destroy_process_group(filler)
        group = dist.new_group(members, use_local_synchronization=True, **options)
    for filler in fillers[:needed]:
        dist.destroy_process_group(filler)
    return group


def link_groups(
    links: Sequence[tuple[int, int]], ranks: Sequence[int], group: dist.ProcessGroup | None, device: torch.device,
    among: dist.ProcessGroup | None = None, timeout: timedelta | None = None,
) -> Links:  # fmt: skip
    """This rank's, or none where the backend of `group` runs all transfers of `device` side by side. `links`:
    (source, target), pipeline ranks; `ranks`: global, by pipeline rank; `group`: any that all of them are in.
    Every rank of `among` (None: the world) must call it.
    """
    backend = backend_of_links(group, device)
    made: dict[int, list] = {}
    if backend is None:
        return {}
    for source, target in links:
        options = link_options(backend, timeout)
        one_way = make_group([ranks[source], ranks[target]], among, backend=backend, **options)
        if one_way is not None:
            sends = ranks[source] == dist.get_rank()
            made.setdefault(target if sends else source, [None, None])[0 if sends else 1] = one_way
    return {peer: (to, back) for peer, (to, back) in made.items()}


def backend_of_links(group: dist.ProcessGroup | None, device: torch.device) -> str | None:
    """That of a group for each direction; None where one group serves all."""
    if device.type == "cpu":
        return None
    backend = backends_of(group).get(device.type)
    return None if backend in (None, "gloo") else backend


def backends_of(group: dist.ProcessGroup | None) -> Mapping[str, str]:
    """By type of device, the backend that sends its tensors."""
    return BackendConfig(dist.Backend(dist.get_backend_config(group))).get_device_backend_map()


def link_options(backend: str, timeout: timedelta | None = None) -> dict[str, Any]:
    """The options for such a group."""
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if backend == "nccl":
        nccl = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        nccl.config.max_ctas = TRANSFER_CTAS
        if timeout is not None:
            nccl._timeout = timeout
        options["pg_options"] = nccl
    return options
