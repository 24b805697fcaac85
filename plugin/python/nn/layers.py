# SPDX-License-Identifier: Apache-2.0
"""From a whole layer to this rank's part of it, and back: known layers, and the protocol for your own."""

import torch
import torch.distributed as dist
from ostinato.errors import Error
from ostinato.profile.model.shardable import added_to, why_not
from torch import nn

from .embedding import ShardedEmbedding
from .linear import ShardedLinear
from .shard import Shard


class ShardingError(Error, TypeError):
    """A layer that cannot be cut, or whose parts do not fit; `str()` names it."""


def sharded(layer: nn.Module, shard: Shard, last: bool = False) -> nn.Module:
    """This rank's part of `layer`, with its weights. `last`: the layer makes the logits for the loss.

    Raises ShardingError where that cannot be done exactly, or where the part does not match `split`.
    """
    kind = type(layer)
    if why_not(kind):
        raise ShardingError(why_not(kind))
    marks = {name: dict(vars(tensor)) for name, tensor in tensors_of(layer).items()}
    devices = {tensor.device for tensor in tensors_of(layer).values() if tensor.is_cuda}
    with torch.random.fork_rng(devices):  # parts of unequal size draw unequal numbers of weights
        if hasattr(layer, "sharded"):
            made = layer.sharded(shard)  # type: ignore[operator]  # not a tensor
        elif kind is nn.Embedding and isinstance(layer, nn.Embedding):
            made = ShardedEmbedding.of(_plain(layer), shard)
        elif kind is nn.Linear and isinstance(layer, nn.Linear):
            made = ShardedLinear.of(layer, shard, gather=not last)
        else:
            made = layer
    _check(layer, made, shard)
    if lost := added_to(layer) - added_to(made):
        raise ShardingError(
            f"{kind.__name__} has {', '.join(sorted(lost))}, which a part of it would lose: register that on the layers of the "
            "finished model, or put it in a stage on one device"
        )
    for name, tensor in tensors_of(made).items():
        vars(tensor).update(marks[name])
    made.train(layer.training)
    return made


def split_of(module: nn.Module) -> dict[str, int]:
    """Dimension along which each tensor of a part is cut; tensors that it does not name are whole."""
    return getattr(module, "split", {})


def cut_state(state: dict, module: nn.Module, shard: Shard) -> dict:
    """The state for a part's load_state_dict(), from the state of the whole layer."""
    split = split_of(module)
    return {name: shard.cut(value, split[name]) if name in split else value for name, value in state.items()}


def whole_state(module: nn.Module, shard: Shard) -> dict | None:
    """The state of the whole layer, on the CPU of the first rank; None on all other ranks. All ranks of the
    shard must call it."""
    split, state = split_of(module), module.state_dict()
    whole = {}
    for name, value in state.items():
        if name not in split:
            whole[name] = value
        elif (parts := collect(value, split[name], shard)) is not None:
            whole[name] = torch.cat(parts, dim=split[name])
    return whole if shard.index == 0 else None


def collect(part: torch.Tensor, dimension: int, shard: Shard) -> list[torch.Tensor] | None:
    """Collects every rank's part on the first rank, one after the other, so that its device holds only one more
    at a time."""
    assert shard.group is not None
    first = dist.get_global_rank(shard.group, 0)
    if shard.index > 0:
        dist.send(torch.tensor([part.size(dimension)], device=part.device), first, group=shard.group)
        dist.send(part.contiguous(), first, group=shard.group)
        return None
    parts = [part.cpu()]
    for index in range(1, shard.count):
        source = dist.get_global_rank(shard.group, index)
        rows = torch.zeros(1, dtype=torch.long, device=part.device)
        dist.recv(rows, source, group=shard.group)
        sizes = list(part.shape)
        sizes[dimension] = int(rows)
        arriving = part.new_empty(sizes)
        dist.recv(arriving, source, group=shard.group)
        parts.append(arriving.cpu())
    return parts


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; shared ones appear once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _plain(layer: nn.Embedding) -> nn.Embedding:
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(layer, option):
            raise ShardingError(
                f"nn.Embedding({option}={getattr(layer, option)}) cannot be sharded: remove {option}"
            )
    return layer


def _check(whole: nn.Module, part: nn.Module, shard: Shard) -> None:
    """Checks the names and shapes on which loading and saving by name rely."""
    expected = {name: list(t.shape) for name, t in tensors_of(whole).items()}
    for name, dimension in split_of(part).items():
        if name not in expected:
            raise ShardingError(
                f"{type(part).__name__}.split names {name!r}, which {type(whole).__name__} does not have"
            )
        size = expected[name][dimension]
        if size < shard.count:
            raise ShardingError(
                f"{type(whole).__name__}: {name!r} has {size} rows, too few for {shard.count} ranks"
            )
        begin, end = shard.bounds(size)
        expected[name][dimension] = end - begin
    found = {name: list(t.shape) for name, t in tensors_of(part).items()}
    if found != expected:
        raise ShardingError(
            f"{type(part).__name__}, rank {shard.index} of {shard.count}: its parameters and buffers are {found}, but `split` "
            f"says {expected}"
        )
