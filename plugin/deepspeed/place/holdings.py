# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a layer that moves, whether it can become that of another rank, and how it does."""

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
    stride: tuple[int, ...]
    dtype: torch.dtype
    parameter: bool
    trainable: bool
    cut: int | None  # dimension along which it is cut; None where it is whole


def check_transfer(unit: str, sent: list[Facts], expected: list[Facts], rank: int, shard: Shard | None) -> None:
    """Every rank checks every transfer, so that all raise the same. `shard`: the part that the target takes; None: all."""
    cut = {fact.name: fact.cut for fact in expected}
    shapes = {f.name: _part_of(f.shape, cut.get(f.name), shard) for f in sent}
    if shapes != {f.name: f.shape for f in expected}:
        raise OstinatoError(
            f'layer "{unit}" is not what its LayerSpec builds (rank {rank} holds other tensors): change layers in their '
            "constructor, or after PipelineModule() has made them"
        )


def _part_of(shape: tuple[int, ...], cut: int | None, shard: Shard | None) -> tuple[int, ...]:
    if cut is None or shard is None:
        return shape
    begin, end = shard.bounds(shape[cut])
    return (*shape[:cut], end - begin, *shape[cut + 1 :])


def tensors_of(module) -> list[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, is a parameter), shared tensors once."""
    parameters = [(name, p, True) for name, p in module.named_parameters()]
    return parameters + [(name, b, False) for name, b in module.named_buffers()]


def facts_of(module: torch.nn.Module) -> list[Facts]:
    """Megatron gives its parameters an attribute `stride`."""
    split = split_of(module)
    return [
        Facts(name, tuple(t.shape), torch.Tensor.stride(t), t.dtype, parameter, t.requires_grad, split.get(name))
        for name, t, parameter in tensors_of(module)
    ]


def send_tensors(module: torch.nn.Module, wanted: list[Facts], part: Shard | None, rank: int, group) -> None:
    """To a rank that builds the same module, or a part of it."""
    have = {name: tensor for name, tensor, _ in tensors_of(module)}
    for fact in wanted:
        tensor = have[fact.name]
        if fact.cut is not None:
            assert part is not None
            tensor = part.cut(tensor.detach(), fact.cut)
        if tensor.numel():
            dist.send(as_bytes(tensor), rank, group=group)


def receive_tensors(module: torch.nn.Module, sent: list[Facts], rank: int, group) -> None:
    """What send_tensors() sends: the numbers, how they lie in memory, and whether they train."""
    facts = {fact.name: fact for fact in sent}
    for name, tensor, _ in tensors_of(module):
        fact = facts[name]
        tensor.data = tensor.data.to(fact.dtype).contiguous()
        if tensor.numel():
            dist.recv(as_bytes(tensor), rank, group=group)
        if fact.shape == tensor.shape and fact.stride != torch.Tensor.stride(tensor):
            tensor.data = laid_out(tensor.data, fact.stride)
        if fact.parameter:
            tensor.requires_grad_(fact.trainable)


def laid_out(data: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same numbers in the order of `stride` (channels_last, say); unchanged where it leaves gaps, or has several in one place."""
    made = torch.empty_strided(data.shape, stride, dtype=data.dtype, device=data.device)
    return made.copy_(data) if torch.empty_like(made).stride() == stride else data


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, which every backend can send whatever the dtype. A view where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
