# SPDX-License-Identifier: Apache-2.0
"""Layers of experts (deepspeed.moe) make their experts' process groups while the engine is made: every rank
must have such a layer, or the ranks would make different groups, and hang.
"""

from collections.abc import Sequence

import torch
from ostinato.groups import everyones
from ostinato.restrictions import Restriction

from ..errors import OstinatoError
from ..section.plans import Stage
from ..upstream import Model
from .tied import owners_of


def refuse_experts_apart(model: Model) -> None:
    """To be called after the layers have moved, before DeepSpeed looks for experts. All ranks must call it;
    raises the same error on each."""
    everyone = everyones(_groups_to_come(model))
    if all(groups == everyone[0] for groups in everyone):
        return
    has, lacks = everyone.index(max(everyone, key=len)), everyone.index(min(everyone, key=len))
    raise OstinatoError(
        f"under this placement rank {has} has layers of experts (deepspeed.moe, ep_size {', '.join(map(str, everyone[has]))}), and rank "
        f"{lacks} has {'none' if not everyone[lacks] else 'different ones'}: each rank makes process groups for its experts, and the ranks would "
        "hang. Use a placement that puts layers of experts on every rank"
    )


def kept_experts(model: Model, stages: Sequence[Stage]) -> list[Restriction]:
    """What a search must obey so that every rank has a layer of experts; [] where it found `stages` in which every
    rank has one, or none, or where not even DeepSpeed's own partition gives each rank one. All ranks must call it."""
    here = {
        int(name) for name, layer in model.named_children() if name.isdecimal() and _groups_to_come(layer)
    }
    experts = set[int]().union(*everyones(here, model._grid.pp_proc_group))
    owners = owners_of(model)
    first = {owners[layer]: layer for layer in sorted(experts, reverse=True)}
    have = {rank for stage in stages if experts & set(stage.layers) for rank in stage.ranks}
    why = "every rank needs a layer of experts (deepspeed.moe), which faster placements do not give it"
    fixed = [Restriction("together", why, layers=(layer,), device=rank) for rank, layer in first.items()]
    lacks = stages and len(have) < len(first) == owners[-1] + 1
    # Of rank 0, for all ranks search by the same, even where one could not read the plan.
    return everyones(fixed if lacks else [])[0]


def _groups_to_come(model: torch.nn.Module) -> list:
    """What identifies the groups, in the order in which DeepSpeed makes them."""
    layers = [module for module in model.modules() if hasattr(module, "set_deepspeed_parallelism")]
    return list(dict.fromkeys(getattr(layer, "ep_size", 0) for layer in layers))
