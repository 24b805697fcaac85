# SPDX-License-Identifier: Apache-2.0
"""The norm of the gradients of a whole pipeline, in which each weight counts once.

norm = clip(parameters, elsewhere, max_norm=1.0, norm_type=2.0, group=group)     # all ranks; the same norm on each
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from ostinato.nn.layers import split_of
from torch import nn

from .wrappers import imported


def repeated(layers: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Of a part of a sharded stage: weights that the stage's first rank has, too."""
    return {
        parameter
        for layer in layers
        for name, parameter in layer.named_parameters()
        if name not in split_of(layer)
    }


def clip(
    parameters: Sequence[nn.Parameter],
    elsewhere: set[nn.Parameter],
    max_norm: float,
    norm_type: float,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Scales the gradients of `parameters`, this rank's, so that the norm over all ranks of the group is at most
    `max_norm`; returns what it was. `elsewhere`: ones that count on another rank."""
    gradients = [p.grad for p in parameters if p.grad is not None and p not in elsewhere]
    device = next((p.device for p in parameters), torch.device("cpu"))
    norms = [_whole(torch.linalg.vector_norm(g.detach().float(), norm_type)) for g in gradients]
    norm = (
        torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros((), device=device)
    )
    if group is not None:
        highest = norm_type == torch.inf
        norm = norm if highest else norm**norm_type
        dist.all_reduce(norm, dist.ReduceOp.MAX if highest else dist.ReduceOp.SUM, group=group)
        norm = norm if highest else norm ** (1 / norm_type)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _whole(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, imported("torch.distributed.tensor", "DTensor")) else norm
