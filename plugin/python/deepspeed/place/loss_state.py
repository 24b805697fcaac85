# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers of the loss, where the plan computes it on a different rank than 1F1B.

    hand_on(model, stages)      # gives that rank the values of the rank that computes it in 1F1B

Each rank has built its own loss_fn, which PipelineModule holds as "loss_fn", and what the script keeps on the
model beside its layers; under 1F1B the last rank's learns.
"""

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from ostinato.groups import everyones
from ostinato.nn.layers import tensors_of

from ..errors import OstinatoError
from ..save.tensor_names import in_layers
from ..section.plans import Stage
from ..upstream import Model

NAME = "loss_fn"  # in a PipelineModule


def hand_on(model: Model, stages: list[Stage]) -> None:
    """All ranks must call it, once the script has made the model. Raises OstinatoError on each where theirs differ."""
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
    device = get_accelerator().device_name(model.local_rank)  # the script's own may not be there yet
    for tensor in (*tensors.values(), *_beside_layers(model)):
        values = tensor.data.to(device)
        dist.broadcast(values, model._grid.pp_group[last], group=model._grid.pp_proc_group)
        tensor.data.copy_(values)


def _beside_layers(model: Model) -> list[torch.Tensor]:
    """Of the model, those that all ranks have."""
    own = {
        name: tensor
        for name, tensor in tensors_of(model).items()
        if not in_layers(name) and not name.startswith(f"{NAME}.")
    }
    described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in own.items()]
    everyone = everyones(described, model._grid.pp_proc_group)
    return [own[one[0]] for one in described if all(one in theirs for theirs in everyone)]


def _described(model: Model, tensors: dict[str, torch.Tensor]) -> tuple:
    loss = model.loss_fn
    name = "None" if loss is None else getattr(loss, "__qualname__", type(loss).__qualname__)
    return (name, *((of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in tensors.items()))
