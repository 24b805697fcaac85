# SPDX-License-Identifier: Apache-2.0
"""Layers of experts (deepspeed.moe) make their experts' process groups while the engine is made: every rank
must have such a layer, or the ranks would make different groups, and hang.
"""

from itertools import pairwise

import torch
from ostinato.groups import everyones
from ostinato.restrictions import Restriction, experts_in, of_experts

from ..errors import OstinatoError
from ..upstream import Model, stock_parts


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


def spread_experts(model: Model) -> list[Restriction]:
    """What a search must obey so that every rank has a layer of experts. All ranks must call it, in DeepSpeed's own
    partition."""
    here = [int(name) for name, layer in model.named_children() if name.isdecimal() and experts_in(layer)]
    stages = [end - first for first, end in pairwise(stock_parts(model))]
    return of_experts({layer for of_rank in everyones(here) for layer in of_rank}, stages)


def _groups_to_come(model: torch.nn.Module) -> list:
    """What identifies the groups, in the order in which DeepSpeed makes them."""
    return list(dict.fromkeys(getattr(layer, "ep_size", 0) for layer in experts_in(model)))
