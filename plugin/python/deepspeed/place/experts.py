# SPDX-License-Identifier: Apache-2.0
"""Layers of experts (deepspeed.moe) make the process groups of their experts while the engine is made: every
rank must have such a layer, or the ranks would count their groups differently, and wait for each other for
ever.
"""

from ostinato.groups import everyones

from ..errors import OstinatoError
from ..upstream import Model


def refuse_experts_apart(model: Model) -> None:
    """After the layers have moved, before DeepSpeed looks for experts. All ranks must call it; raises the
    same on each."""
    everyone = everyones(_groups_to_come(model))
    if all(groups == everyone[0] for groups in everyone):
        return
    has, lacks = everyone.index(max(everyone, key=len)), everyone.index(min(everyone, key=len))
    raise OstinatoError(
        f"rank {has} has layers of experts (deepspeed.moe, ep_size {', '.join(map(str, everyone[has]))}) under this placement, and rank "
        f"{lacks} has {'none' if not everyone[lacks] else 'others'}: DeepSpeed makes their process groups where they are, and the ranks would "
        "wait for each other for ever. Use a placement that has layers of experts on every rank"
    )


def _groups_to_come(model: Model) -> list:
    """What tells the groups apart, in the order in which DeepSpeed makes them."""
    layers = [module for module in model.modules() if hasattr(module, "set_deepspeed_parallelism")]
    return list(dict.fromkeys(getattr(layer, "ep_size", 0) for layer in layers))
