# SPDX-License-Identifier: Apache-2.0
"""An embedding whose vocabulary is split over the ranks of a stage."""

import torch
from torch import nn
from torch.nn import functional

from .shard import Shard


class ShardedEmbedding(nn.Module):
    """Rows [begin, end) of an embedding of `num_embeddings` rows. Each rank looks up the tokens that it has,
    and the results are summed: all but one are zero, so forward and gradients equal those of the whole table.
    """

    split = {"weight": 0}

    def __init__(
        self, num_embeddings, embedding_dim, shard: Shard, padding_idx=None, device=None, dtype=None
    ):
        super().__init__()
        self.shard, self.num_embeddings, self.embedding_dim = shard, num_embeddings, embedding_dim
        self.begin, self.end = shard.bounds(num_embeddings)
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(
            torch.empty(self.end - self.begin, embedding_dim, device=device, dtype=dtype)
        )
        nn.init.normal_(self.weight)
        if self._local_padding() is not None:
            with torch.no_grad():
                self.weight[self._local_padding()].zero_()

    @classmethod
    def of(cls, layer: nn.Embedding, shard: Shard) -> "ShardedEmbedding":
        """This rank's rows of a whole layer."""
        weight = layer.weight
        made = cls(
            weight.size(0),
            weight.size(1),
            shard,
            padding_idx=layer.padding_idx,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            made.weight.copy_(shard.cut(weight, 0))
        made.weight.requires_grad_(weight.requires_grad)
        return made

    def forward(self, tokens):
        # Does not synchronise: for tokens on an accelerator the error comes later.
        torch._assert_async(
            ((tokens >= 0) & (tokens < self.num_embeddings)).all(), "a token beyond the vocabulary"
        )
        elsewhere = (tokens < self.begin) | (tokens >= self.end)
        rows = (tokens - self.begin).masked_fill(elsewhere, 0)
        found = functional.embedding(rows, self.weight, self._local_padding())
        return self.shard.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0))

    def _local_padding(self) -> int | None:
        if self.padding_idx is None or not self.begin <= self.padding_idx < self.end:
            return None
        return self.padding_idx - self.begin

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}, rows=[{self.begin}, {self.end})"
