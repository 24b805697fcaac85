# SPDX-License-Identifier: Apache-2.0
"""The norm of the gradients of a whole pipeline, in which each weight counts once.

norm = clip(parameters, elsewhere, group, device, max_norm=1.0)     # all ranks; the same norm on each
"""

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
import torch.distributed as dist
from ostinato.nn.layers import split_of
from torch import nn

from .checks import PipelineError
from .wrappers import imported

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    group: dist.ProcessGroup | None,
    device: torch.device,
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales the gradients of `parameters`, this rank's, so that the norm over all ranks of the group is at most
    `max_norm`; returns what it was, in the type that torch gives it. `elsewhere`: ones that count on another rank.
    """
    order = float(norm_type)  # "inf", too
    if order == 0:
        raise PipelineError(
            "norm_type is 0, which measures no size: expected 2.0, or another norm to clip by"
        )
    gradients = [p.grad.detach() for p in parameters if p.grad is not None and p not in elsewhere]
    norms = [_whole(torch.linalg.vector_norm(_wide(g), order)) for g in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms), order) if norms else torch.zeros((), device=device)
    types = {g.dtype.to_real() for g in gradients}
    if group is not None:
        norm, types = _over_ranks(norm, types, order, group)
    if error_if_nonfinite and not norm.isfinite():
        raise PipelineError(
            f"the norm of the gradients is {norm.item()}, so they are not clipped: leave this step out, or pass "
            "error_if_nonfinite=False to scale them all the same"
        )
    made = reduce(torch.promote_types, types) if types else torch.float32
    norm = norm.to(torch.promote_types(made, torch.float32))
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.to(made)


def _over_ranks(
    norm: torch.Tensor, types: set[torch.dtype], order: float, group: dist.ProcessGroup
) -> tuple[torch.Tensor, set[torch.dtype]]:
    """The norm and the types of the gradients of all ranks, some of which may have none."""
    mine = torch.stack([norm.double(), *(norm.new_tensor(kind in types).double() for kind in TYPES)])
    held = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(held, mine, group=group)
    each = torch.stack(held)
    has = each[:, 1:].bool()
    norms = each[has.any(1), 0]
    whole = torch.linalg.vector_norm(norms, order) if len(norms) else norm
    return whole, {kind for kind, some in zip(TYPES, has.any(0).tolist(), strict=True) if some}


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    """16 bits do not hold a sum of squares."""
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def _whole(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, imported("torch.distributed.tensor", "DTensor")) else norm
