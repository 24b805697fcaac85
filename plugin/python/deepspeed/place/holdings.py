# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a layer that moves, whether another rank can take it over, and how it is sent."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.nn.layers import split_of

from ..errors import OstinatoError


@dataclass(frozen=True)
class Facts:
    """What the new owner of a tensor must know of it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    cut: int | None  # dimension along which it is cut; None where it is whole


def check_transfer(
    unit: str, sent: list[Facts], expected: list[Facts], rank: int, shard: Shard | None
) -> None:
    """Every rank checks every transfer, so that all raise the same error. `shard`: the part that the target takes;
    None: all."""
    cut = {fact.name: fact.cut for fact in expected}
    parts = {f.name: (_part_of(f.shape, cut.get(f.name), shard), f.dtype) for f in sent}
    if parts != {f.name: (f.shape, f.dtype) for f in expected}:
        raise OstinatoError(
            f'layer "{unit}" is not what its LayerSpec builds (rank {rank} holds different tensors): change layers in their '
            "constructor, or after PipelineModule() has made them"
        )


def _part_of(shape: tuple[int, ...], cut: int | None, shard: Shard | None) -> tuple[int, ...]:
    if cut is None or shard is None:
        return shape
    begin, end = shard.bounds(shape[cut])
    return (*shape[:cut], end - begin, *shape[cut + 1 :])


def tensors_of(module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name; shared ones appear once."""
    return [*module.named_parameters(), *module.named_buffers()]


def facts_of(module: torch.nn.Module) -> list[Facts]:
    split = split_of(module)
    return [Facts(name, tuple(t.shape), t.dtype, split.get(name)) for name, t in tensors_of(module)]


def send_tensors(module: torch.nn.Module, wanted: list[Facts], part: Shard | None, rank: int, group) -> None:
    """Sends tensors to a rank that builds the same module, or a part of it."""
    have = dict(tensors_of(module))
    for fact in wanted:
        tensor = have[fact.name]
        if fact.cut is not None:
            assert part is not None
            tensor = part.cut(tensor.detach(), fact.cut)
        if tensor.numel():
            dist.send(as_bytes(tensor), rank, group=group)


def receive_tensors(module: torch.nn.Module, rank: int, group) -> None:
    """Receives what send_tensors() sends. A tensor keeps its memory format (channels_last, for example)."""
    for _, tensor in tensors_of(module):
        if tensor.numel():
            held, numbers = tensor.data, tensor.data.contiguous()
            dist.recv(as_bytes(numbers), rank, group=group)
            if not held.is_contiguous():
                tensor.data = torch.empty_like(held).copy_(numbers)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, which every backend can send for any dtype. A view where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
