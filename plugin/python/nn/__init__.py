# SPDX-License-Identifier: Apache-2.0
"""Layers split over several pipeline ranks: stages with blocks on several devices (M, NN, ...).

A placement that puts the blocks of a stage on several devices shards that stage over them. Each of its layers
is then cut: `nn.Embedding` and `nn.Linear` are known (a Linear at the end of the model keeps its classes
apart, and computes the loss function's cross-entropy without any rank ever holding all logits); every rank runs
a whole LayerNorm, RMSNorm or Identity. Your own layer says how it is cut:

    class Experts(nn.Module):
        def sharded(self, shard: ostinato.nn.Shard) -> nn.Module:      # called on the whole layer
            return ShardedExperts(self, shard)

    class ShardedExperts(nn.Module):
        split = {"up.weight": 0, "down.weight": 1}                     # the dimension along which each tensor is cut

        def forward(self, x):                                          # x: the same, whole, on every rank
            x = self.shard.enter(x)                                    # sums the ranks' gradients of x on the way back
            y = self.down(torch.relu(self.up(x)))                      # this rank's part of the work
            return self.shard.leave(y)                                 # the sum over the ranks: the same on each

The contract, which the executor relies on and ostinato checks where it can:

- Inputs, outputs and their gradients are whole and the same on every rank of the stage; `enter` and `leave`
  make them so.
- Parameters and buffers have the same names as in the whole layer. Those in `split` are `shard.cut(whole,
  dimension)`; all other tensors are whole on every rank, and must get the same gradient there. So the whole
  layer's checkpoint is cut and assembled by name, without further code.
- Every rank runs the same collectives in the same order, only through `shard` (or `shard.group`), also where a
  stage recomputes its forward in the backward. If ranks of one stage draw random numbers, they must draw the
  same ones.
"""

from .cross_entropy import vocabulary_cross_entropy
from .embedding import ShardedEmbedding
from .lanes import on_lane
from .layers import ShardingError, cut_state, sharded, whole_state
from .linear import ShardedLinear
from .logits import ShardedLogits
from .moe import moe_parts
from .shard import Shard

__all__ = [
    "Shard",
    "ShardedEmbedding",
    "ShardedLinear",
    "ShardedLogits",
    "ShardingError",
    "cut_state",
    "moe_parts",
    "on_lane",
    "sharded",
    "vocabulary_cross_entropy",
    "whole_state",
]
