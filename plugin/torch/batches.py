# SPDX-License-Identifier: Apache-2.0
"""From what a step is given to what each micro-batch takes.

    micro_batches(tokens, 4, "inputs")             # four equal parts of a tensor, or of each tensor of a tuple, along dimension 0
    micro_batches([a, b, c, d], 4, "inputs")       # already cut
"""

from typing import Any

import torch
from ostinato.errors import Error


class BatchError(Error, ValueError):
    """Inputs or targets that do not fit the plan; `str()` says which and why."""


def micro_batches(value: Any, count: int, what: str) -> list[Any]:
    """One entry a micro-batch; `count` times None for None. `what` names the argument in messages."""
    if value is None:
        return [None] * count
    if isinstance(value, list):
        if len(value) != count:
            raise BatchError(f"{what} has {len(value)} entries, and the plan has {count} micro-batches")
        return value
    if isinstance(value, tuple):
        parts = [micro_batches(item, count, what) for item in value]
        return list(zip(*parts, strict=True))
    if not torch.is_tensor(value):
        raise BatchError(f"{what} is a {type(value).__name__}: give a tensor, a tuple of tensors, or a list with an entry for each micro-batch")
    if value.dim() == 0 or value.size(0) % count:
        raise BatchError(f"{what} has shape {tuple(value.shape)}, which {count} micro-batches do not divide along dimension 0")
    return list(value.chunk(count))


def as_arguments(value: Any) -> tuple:
    """What a module is called with."""
    return value if isinstance(value, tuple) else (value,)
