# SPDX-License-Identifier: Apache-2.0
"""A loss_fn with parameters or buffers, where the plan computes the loss on a different rank than 1F1B.

    hand_on(model, stages)      # gives that rank's loss_fn the values of the one that 1F1B uses

Each rank has built its own loss_fn, which PipelineModule holds as "loss_fn"; under 1F1B the last rank's
learns.
"""

import torch
import torch.distributed as dist
from ostinato.groups import everyones
from ostinato.nn.layers import tensors_of

from ..errors import OstinatoError
from ..section.plans import Stage
from ..upstream import Model

NAME = "loss_fn"  # in a PipelineModule


def hand_on(model: Model, stages: list[Stage]) -> None:
    """All ranks must call it. Raises OstinatoError on each where theirs differ."""
    ranks, last = [stage.rank for stage in stages if stage.ends], len(model._grid.pp_group) - 1
    if set(ranks) <= {last}:
        return
    tensors = tensors_of(model.loss_fn) if isinstance(model.loss_fn, torch.nn.Module) else {}
    everyone = everyones(_described(model, tensors), model._grid.pp_proc_group)
    if len(set(everyone)) > 1:
        kinds = ", ".join(
            f"{name} on rank {rank}" for (name, *_), rank in zip(everyone, model._grid.pp_group, strict=True)
        )
        raise OstinatoError(
            f"the placement computes the loss on a different rank than 1F1B, but loss_fn, or its tensors' shapes or dtypes, differ between ranks "
            f"({kinds}): give PipelineModule the same loss_fn on every rank"
        )
    for tensor in tensors.values():
        dist.broadcast(tensor.data, model._grid.pp_group[last], group=model._grid.pp_proc_group)


def is_its(name: str) -> bool:
    """Whether the parameter `name` belongs to the loss."""
    return name.startswith(f"{NAME}.")


def _described(model: Model, tensors: dict[str, torch.Tensor]) -> tuple:
    loss = model.loss_fn
    name = "None" if loss is None else getattr(loss, "__qualname__", type(loss).__qualname__)
    return (name, *((of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in tensors.items()))
