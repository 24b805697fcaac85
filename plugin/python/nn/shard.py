# SPDX-License-Identifier: Apache-2.0
"""One rank's place among the ranks of a sharded stage, and what they exchange."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from ostinato.groups import timeout_of


@dataclass(frozen=True)
class Shard:
    """Rank `index` of `count`. `group` is the process group of these ranks, in this order; None for a single
    rank. `near`: memory that they share if all are on one host (ostinato._plugin.NearRanks); its sums, exchanges
    and broadcasts of tensors on the CPU take a tenth of gloo's time.
    """

    index: int
    count: int
    group: dist.ProcessGroup | None = None
    near: Any = field(default=None, compare=False)

    @classmethod
    def among(cls, group, timeout_s: float | None = None) -> "Shard":
        """This rank's place in a group; all its ranks must call this. `timeout_s`: longest wait for another
        rank; None: the group's."""
        patience = timeout_of(group) if timeout_s is None else timeout_s
        return cls(dist.get_rank(group), dist.get_world_size(group), group, near_ranks(group, patience))

    def bounds(self, size: int) -> tuple[int, int]:
        """This rank's part [begin, end) of `size` rows: as equal as possible, the first ones longer by one."""
        rows, rest = divmod(size, self.count)
        begin = self.index * rows + min(self.index, rest)
        return begin, begin + rows + (self.index < rest)

    def cut(self, whole: torch.Tensor, dimension: int) -> torch.Tensor:
        """This rank's part of a tensor; a view."""
        begin, end = self.bounds(whole.size(dimension))
        return whole.narrow(dimension, begin, end - begin)

    def of(self, index: int) -> "Shard":
        """The same ranks, from the place `index`. For cutting; it has no group."""
        return Shard(index, self.count)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """The identity; its backward sums the ranks' gradients. For inputs that each rank computes in
        part."""
        return _Enter.apply(x, self) if self.count > 1 else x

    def leave(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' parts; its backward is the identity, as the gradient is the same on every
        rank."""
        return _Leave.apply(part, self) if self.count > 1 else part

    def gather(self, part: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
        """The ranks' parts, one after the other along `dimension`, `size` in all; in the backward each rank
        takes its own part."""
        return _Gather.apply(part, self, dimension, size) if self.count > 1 else part

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums over the ranks, in place, without a gradient."""
        if self._shares(tensor):
            self.near.sum(tensor)
        elif self.count > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replaces the tensor by the first rank's, in place, without a gradient."""
        if self._shares(tensor):
            self.near.broadcast(tensor, 0)
        elif self.count > 1:
            assert self.group is not None
            dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)
        return tensor

    def collect(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor, all of the same shape, along a new first dimension; without a gradient."""
        if self.count == 1:
            return tensor.unsqueeze(0)
        if self._shares(tensor):
            return torch.stack(self.near.gather(tensor))
        everyone = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(everyone, tensor, group=self.group)
        return torch.stack(everyone)

    def _shares(self, tensor: torch.Tensor) -> bool:
        return self.near is not None and tensor.is_cpu and tensor.is_contiguous()


def near_ranks(group, timeout_s: float):
    """Shared memory for the ranks of a group, if all are on one host and compute on the CPU; else None, on every
    rank. All ranks must call it.
    """
    if dist.get_world_size(group) == 1 or dist.get_backend(group) != "gloo":
        return None
    from ostinato import _plugin

    near = _plugin.NearRanks(group, timeout_s)
    shared = torch.tensor([near.are_near()], dtype=torch.uint8, device="cpu")
    dist.all_reduce(shared, dist.ReduceOp.MIN, group=group)
    return near if shared.item() else None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.shard = shard
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        # A copy: other consumers may use the same gradient.
        return ctx.shard.sum_(gradient.clone(memory_format=torch.contiguous_format)), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, shard):
        return shard.sum_(part.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Gather(torch.autograd.Function):
    """Parts differ in size by at most one row; collectives need equal sizes, so each is padded to the longest."""

    @staticmethod
    def forward(ctx, part, shard, dimension, size):
        ctx.shard, ctx.dimension = shard, dimension
        sizes = [end - begin for begin, end in (shard.of(i).bounds(size) for i in range(shard.count))]
        padded = part.new_zeros([max(sizes), *part.transpose(0, dimension).shape[1:]])
        padded[: part.size(dimension)] = part.transpose(0, dimension)
        whole = torch.cat([p[:rows] for p, rows in zip(shard.collect(padded), sizes, strict=True)])
        return whole.transpose(0, dimension).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.shard.cut(gradient, ctx.dimension), None, None, None
