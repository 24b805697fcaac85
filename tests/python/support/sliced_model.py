# SPDX-License-Identifier: Apache-2.0
"""A small GPT of which slice ranks hold parts, as Megatron's and gpt-neox's do: linears cut by columns and
then by rows, dropout from a generator of the slice, (hidden, mask of booleans) across every border, and a
tied embedding.
"""

import sys
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, BLOCKS = 8, 2, 13, 5, 2, 4
LAYERS = BLOCKS + 4
MEGATRON = "megatron.core.tensor_parallel.random"
# Of this process; `first`: the rank of slice 0.
here = SimpleNamespace(group=None, index=0, count=1, first=0, tracker=None)


class Enter(torch.autograd.Function):
    """What each slice computes with: its gradient is the sum of theirs."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return summed(gradient)


class Leave(torch.autograd.Function):
    """The sum of what the slices have made."""

    @staticmethod
    def forward(context, x):
        return summed(x)

    @staticmethod
    def backward(context, gradient):
        return gradient


def summed(part):
    whole = part.contiguous().clone()
    dist.all_reduce(whole, group=here.group)
    return whole


def tracker():
    from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker

    return here.tracker or get_cuda_rng_tracker()


def take_tracker(of_megatron: bool) -> None:
    """Megatron-Core has its own where deepspeed.checkpointing is not configured."""
    from deepspeed.runtime.activation_checkpointing.checkpointing import CudaRNGStatesTracker

    here.tracker = CudaRNGStatesTracker() if of_megatron else None
    sys.modules.pop(MEGATRON, None)
    if of_megatron:
        sys.modules[MEGATRON] = made = ModuleType(MEGATRON)
        vars(made)["get_cuda_rng_tracker"] = tracker


def cut(rows: int, columns: int) -> nn.Parameter:
    """A slice of a matrix, with the marks that Megatron gives it."""
    with tracker().fork():
        made = nn.Parameter(0.3 * torch.randn(rows, columns))
    made.model_parallel, made.stride = True, 1
    return made


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        part = WIDTH // here.count
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = cut(3 * part, WIDTH), cut(WIDTH, part)
        self.up, self.down = cut(4 * part, WIDTH), cut(WIDTH, 4 * part)
        self.bias, self.dropout = nn.Parameter(torch.zeros(WIDTH)), dropout

    def forward(self, given):
        x, mask = given
        q, k, v = (
            (Enter.apply(self.norms[0](x)) @ self.qkv.t())
            .unflatten(-1, (3, HEADS // here.count, -1))
            .transpose(1, 3)
            .unbind(2)
        )
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, -1e4).softmax(-1)
        if self.dropout and self.training:
            with tracker().fork():
                scores = nn.functional.dropout(scores, self.dropout)
        x = x + Leave.apply((scores @ v).transpose(1, 2).flatten(2) @ self.out.t())
        grown = nn.functional.gelu(Enter.apply(self.norms[1](x)) @ self.up.t())
        return x + nn.functional.dropout(
            Leave.apply(grown @ self.down.t()) + self.bias, self.dropout, self.training
        ), mask


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)

    @property
    def weight(self):
        return self.words.weight

    def forward(self, given):
        tokens, mask = given
        return self.words(tokens), mask


def without_mask(given):
    return given[0]


def logits(embedding, hidden):
    return hidden @ embedding.weight.t()


def topology_of(options):
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    return PipeModelDataParallelTopology(
        options.stages, options.slices, dist.get_world_size() // options.stages // options.slices
    )


class Sliced:
    """`module`: the class of the PipelineModule, by which DeepSpeed knows GPT2ModelPipe."""

    def __init__(self, dropout: float = 0.0, module: str = "", megatron: bool = False):
        self._dropout, self._name, self._megatron = dropout, module, megatron

    @property
    def module(self):
        from deepspeed.pipe import PipelineModule

        return type(self._name, (PipelineModule,), {}) if self._name else PipelineModule

    def layers_of(self, options) -> list:
        from deepspeed.pipe import LayerSpec, TiedLayerSpec

        topology, rank = topology_of(options), dist.get_rank()
        mine = topology.get_coord(rank)
        for ranks in topology.get_axis_comm_lists("model") or [
            [rank] for rank in range(dist.get_world_size())
        ]:
            group = dist.new_group(ranks)
            if rank in ranks:
                here.group, here.index, here.count, here.first = group, mine.model, len(ranks), ranks[0]
        torch.manual_seed(1000 + mine.pipe)  # whole parameters are equal on all slices
        take_tracker(self._megatron)
        tracker().reset()
        tracker().add("model-parallel-rng", 5000 + 10 * mine.pipe + mine.model)
        first, last = (
            TiedLayerSpec("embed", Embedding, forward_fn=of, tied_weight_attr="weight")
            for of in (None, logits)
        )
        blocks = [LayerSpec(Block, self._dropout) for _ in range(BLOCKS)]
        return [first, *blocks, without_mask, LayerSpec(nn.LayerNorm, WIDTH), last]

    @staticmethod
    def loss(made, labels):
        return nn.functional.cross_entropy(made.flatten(0, 1), labels.flatten())

    @staticmethod
    def micro_batches(seed: int):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None, None]
        while True:
            tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
            yield (tokens[:, :-1], mask), tokens[:, 1:]


def broadcast(item):
    """What the first slice rank has read, as Megatron's broadcast_data()."""
    held = [item]
    dist.broadcast_object_list(held, src=here.first, group=here.group)
    return held[0]
