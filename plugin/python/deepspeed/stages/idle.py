# SPDX-License-Identifier: Apache-2.0
"""A parameter for ranks that have nothing to train: all their layers are frozen.

DeepSpeed's optimizers cannot be made without a parameter, its clipping looks for one, and ZeRO and bf16 reduce
theirs on every rank. This one has a single element, a zero with gradient zero; it belongs to no layer and is
in no layer's checkpoint.
"""

import torch
from ostinato.groups import everyones
from torch import nn

from ..save.checkpoint import IDLE as NAME
from ..upstream import Model, count_elsewhere


def give_idle(model: nn.Module, groups: list[dict]) -> nn.Parameter | None:
    """Registers one where this rank has no trainable parameter, and adds it to the first of the optimizer's
    `groups`; with [], DeepSpeed reads the model's parameters itself. Returns None where the rank has something
    to train.
    """
    idle = getattr(model, NAME, None)
    alone = not any(p.requires_grad for p in model.parameters() if p is not idle)
    if idle is not None:  # the script may have added something trainable since
        idle.requires_grad_(alone)
    if not alone:
        return None
    if idle is None:
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros((), device="cpu"))
        idle = nn.Parameter(torch.zeros(1, dtype=like.dtype, device=like.device))
        count_elsewhere(idle, False)
        model.register_parameter(NAME, idle)
    if groups and not any(parameter is idle for group in groups for parameter in group["params"]):
        groups[0]["params"].append(idle)
    return idle


def learn_nothing(idle: nn.Parameter) -> None:
    """Runs a backward, as DeepSpeed waits for a gradient."""
    idle.backward(torch.zeros_like(idle))


def names_where_idle(model: Model, idle: nn.Parameter | None) -> list[list[str]] | None:
    """By pipeline rank, the names of its parameters; None where all have something to train. All ranks
    must call it."""
    everyone = everyones(
        ([name for name, _ in model.named_parameters()], idle is not None), model._grid.pp_proc_group
    )
    return [names for names, _ in everyone] if any(idles for _, idles in everyone) else None


def given_groups(optimizer, model_parameters) -> list[dict]:
    """The parameter groups that deepspeed.initialize() was given; [] where DeepSpeed makes them."""
    if hasattr(optimizer, "param_groups"):
        return optimizer.param_groups
    if not isinstance(model_parameters, list):
        return []
    if model_parameters and isinstance(model_parameters[0], dict):
        return [group for group in model_parameters if isinstance(group.get("params"), list)]
    return [{"params": model_parameters}]
