# SPDX-License-Identifier: Apache-2.0
"""Sends the tensors of a layer that moves to its new rank, and checks before that they fit there."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.nn.layers import split_of, tensors_of

from ..errors import OstinatoError
from ostinato.buffers import as_bytes


@dataclass(frozen=True)
class Metadata:
    """What the new owner of a tensor must know of it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    cut: int | None  # dimension along which it is cut; None where it is whole


def check_transfer(
    name: str, sent: list[Metadata], expected: list[Metadata], rank: int, shard: Shard | None
) -> None:
    """Every rank checks every transfer, so that all raise the same error. `shard`: the part that the target takes;
    None: all."""
    cut = {one.name: one.cut for one in expected}
    parts = {one.name: (_part_of(one.shape, cut.get(one.name), shard), one.dtype) for one in sent}
    if parts != {one.name: (one.shape, one.dtype) for one in expected}:
        raise OstinatoError(
            f'layer "{name}" is not what its LayerSpec builds (rank {rank} holds different tensors): change layers in their '
            "constructor, or after PipelineModule() has made them"
        )


def _part_of(shape: tuple[int, ...], cut: int | None, shard: Shard | None) -> tuple[int, ...]:
    if cut is None or shard is None:
        return shape
    begin, end = shard.bounds(shape[cut])
    return (*shape[:cut], end - begin, *shape[cut + 1 :])


def metadata_of(module: torch.nn.Module) -> list[Metadata]:
    split = split_of(module)
    return [
        Metadata(name, tuple(t.shape), t.dtype, split.get(name)) for name, t in tensors_of(module).items()
    ]


def send_tensors(
    module: torch.nn.Module, wanted: list[Metadata], part: Shard | None, rank: int, group
) -> None:
    """Sends tensors to a rank that builds the same module, or a part of it."""
    have = tensors_of(module)
    for one in wanted:
        tensor = have[one.name]
        if one.cut is not None:
            assert part is not None
            tensor = part.cut(tensor.detach(), one.cut)
        if tensor.numel():
            dist.send(as_bytes(tensor), rank, group=group)


def receive_tensors(module: torch.nn.Module, rank: int, group) -> None:
    """Receives what send_tensors() sends. A tensor keeps its memory format (channels_last, for example)."""
    for tensor in tensors_of(module).values():
        if tensor.numel():
            held, numbers = tensor.data, tensor.data.contiguous()
            dist.recv(as_bytes(numbers), rank, group=group)
            if not held.is_contiguous():
                tensor.data = torch.empty_like(held).copy_(numbers)
