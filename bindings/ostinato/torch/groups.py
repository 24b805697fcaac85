"""Process groups that are made by the ranks of another group, and not by the whole world."""

from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.distributed_c10d import _world


def make_group(members: Sequence[int], among: dist.ProcessGroup | None = None, backend: str | None = None):
    """A group of the global ranks `members`; None on the others. Every rank of `among` (None: the world) must call it.

    torch names a group that some ranks of the world make alone by their numbers and by how many groups a rank is in already. Where
    these counts differ, the members would wait for each other under different names, for ever. So they are made equal before.
    """
    callers = dist.get_process_group_ranks(among or dist.group.WORLD)
    if len(callers) == dist.get_world_size():
        made = dist.new_group(members, backend=backend)
        return made if dist.get_rank() in members else None
    counts = [0] * len(callers)
    dist.all_gather_object(counts, len(_world.pg_names), group=among)
    if dist.get_rank() not in members:
        return None
    most = max(counts[callers.index(rank)] for rank in members)
    fillers = [
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        for _ in range(most - counts[callers.index(dist.get_rank())])
    ]
    group = dist.new_group(members, backend=backend, use_local_synchronization=True)
    for filler in fillers:
        dist.destroy_process_group(filler)
    return group
