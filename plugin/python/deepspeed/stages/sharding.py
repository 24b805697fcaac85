# SPDX-License-Identifier: Apache-2.0
"""Stages on several pipeline ranks: which layers they may have, the ranks' process groups, and data for all
ranks."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.profile.model.shardable import why_not

from ..errors import OstinatoError, Unsupported
from ..section.plans import Stage
from ostinato.buffers import as_bytes


def check_layers(specs: list, stages: list[Stage]) -> None:
    """Raises Unsupported for a layer of a sharded stage that cannot be cut. Builds nothing."""
    from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec

    from ..graph_model import NodeSpec

    for stage in stages:
        for layer in stage.layers if stage.sharded else ():
            spec = specs[layer]
            where = f"stage {stage.index} is sharded over pipeline ranks {list(stage.ranks)}, but its layer {layer}"
            if isinstance(spec, TiedLayerSpec):
                raise Unsupported(f'{where} is tied ("{spec.key}"): tied layers cannot be sharded')
            spec = spec.layer if isinstance(spec, NodeSpec) else spec
            kind = spec.typename if isinstance(spec, LayerSpec) else type(spec)
            if issubclass(kind, torch.nn.Module) and why_not(kind):
                raise Unsupported(f"{where}: {why_not(kind)}")


def groups_of(
    grid, holders: Iterable[tuple[int, ...]], **options: Any
) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Makes a process group for each set of pipeline ranks that share a layer, in each pipeline, in the same
    order everywhere. Returns this rank's groups, by set. All ranks must call it. `options`: of torch's
    new_group().
    """
    groups = {}
    for ranks in sorted({h for h in holders if len(h) > 1}):
        for pipeline in grid.pipe_groups:
            group = dist.new_group([pipeline[r] for r in ranks], **options)
            if dist.get_rank() in [pipeline[r] for r in ranks]:
                groups[ranks] = group
    return groups


def shards_of(grid, stages: list[Stage], timeout_s: float) -> dict[int, Shard]:
    """This rank's place in each sharded stage, by layer. All ranks must call it."""
    groups = groups_of(grid, [stage.ranks for stage in stages], timeout=timedelta(seconds=timeout_s))
    places = {ranks: Shard.among(group, timeout_s) for ranks, group in groups.items()}
    return {layer: places[stage.ranks] for stage in stages if stage.ranks in places for layer in stage.layers}


def couriers_of(stages: list[Stage], shards: dict[int, Shard], device) -> dict[tuple[int, str], "Courier"]:
    """A Courier for each sharded stage of this rank that reads data, by (stage, "inputs" or "labels")."""
    couriers: dict[tuple[int, str], Courier] = {}
    for stage in stages:
        for name, wanted in (("inputs", stage.reads), ("labels", stage.ends)):
            if wanted and stage.first in shards:
                couriers[stage.index, name] = Courier(shards[stage.first], device)
    return couriers


class Courier:
    """Gives all ranks of a stage what the first one has read: a tensor, several, or None. One broadcast per
    micro-batch, two where the size differs from the micro-batch before.

    Wire format: HEADER int64 (bytes in all, then None, one tensor or a tuple, then dtype, dimensions and
    sizes of each), then the tensors' bytes.
    """

    HEADER = 64
    NOTHING, ONE, SEVERAL, UNKNOWN = range(4)
    DTYPES = (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    )

    def __init__(self, shard: Shard, device):
        self._shard, self._device = shard, device
        self._size = 8 * self.HEADER  # of the last message

    def share(self, value):
        """Sends the first rank's `value`. Raises OstinatoError on every rank where it has a different type."""
        if self._shard.index == 0:
            message = self._pack(value)
            first = message[: self._size]
            missing = self._size - len(first)
            self._shard.broadcast_(torch.nn.functional.pad(first, (0, missing)) if missing else first)
            if len(message) != self._size:
                self._shard.broadcast_(message)
        else:
            message = self._receive(self._size)
            size = int(message[:8].view(torch.int64))
            if size != self._size:
                message = self._receive(size)
        self._size = len(message)
        return self._unpack(message)

    def _receive(self, size: int) -> torch.Tensor:
        return self._shard.broadcast_(torch.empty(size, dtype=torch.uint8, device=self._device))

    def _pack(self, value) -> torch.Tensor:
        several = isinstance(value, tuple | list)
        tensors = list(value) if several else [] if value is None else [value]
        kind = self.SEVERAL if several else self.NOTHING if value is None else self.ONE
        if not all(torch.is_tensor(t) and t.dtype in self.DTYPES for t in tensors):
            tensors, kind = [], self.UNKNOWN
        words = [0, kind, len(tensors)]
        for tensor in tensors:
            words += [self.DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        if len(words) > self.HEADER:
            tensors, words = [], [0, self.UNKNOWN, 0]
        header = torch.tensor(
            words + [0] * (self.HEADER - len(words)), dtype=torch.int64, device=self._device
        )
        parts = [as_bytes(t.to(self._device)) for t in tensors]
        header[0] = 8 * self.HEADER + sum(len(part) for part in parts)
        return torch.cat([header.view(torch.uint8), *parts])

    def _unpack(self, message: torch.Tensor):
        words = iter(message[: 8 * self.HEADER].clone().view(torch.int64).tolist())
        _, kind, count = next(words), next(words), next(words)
        if kind == self.UNKNOWN:
            raise OstinatoError(
                "inputs and labels of a sharded stage must be a tensor, a tuple of tensors, or None"
            )
        tensors, at = [], 8 * self.HEADER
        for _ in range(count):
            dtype, shape = self.DTYPES[next(words)], [next(words) for _ in range(next(words))]
            end = at + torch.Size(shape).numel() * dtype.itemsize
            # A copy, which is aligned for view().
            tensors.append(message[at:end].clone().view(dtype).view(shape))
            at = end
        return tensors[0] if kind == self.ONE else tuple(tensors) if kind == self.SEVERAL else None
