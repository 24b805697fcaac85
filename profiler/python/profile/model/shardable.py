# SPDX-License-Identifier: Apache-2.0
"""Which layers can be sharded over several devices (ostinato.nn cuts them), and which of them gain by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from torch import nn

# Deterministic and cheap: each rank of a sharded stage runs them whole, on the same values.
ALIKE = (nn.LayerNorm, nn.RMSNorm, nn.Identity)


def why_not(kind: type) -> str:
    """Why a layer of this class cannot be part of a sharded stage; "" where it can."""
    if hasattr(kind, "sharded") or kind in (nn.Embedding, nn.Linear, *ALIKE):
        return ""
    return (
        f"{kind.__name__} does not say how to cut it: give it a method sharded(shard), as ostinato.nn describes, or put it in a stage "
        "on one device"
    )


def added_to(layer: nn.Module) -> set[str]:
    """What a script has added to what the layer's class does: hooks, also of its parameters, and a forward()."""
    held = vars(layer)
    found = {
        name.strip("_").replace("_", " ") for name, value in held.items() if name.endswith("_hooks") and value
    }
    if "forward" in held:
        found.add("a forward() given to it")
    for name, tensor in layer.named_parameters():
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            found.add(f"hooks of {name}")
    return found


def can_be_cut(layer: Any) -> bool:
    """Of a LayerSpec before it is built, of a module, or of a callable. A tied layer cannot; a layer without
    parameters, or one that each rank would run whole, gains nothing."""
    if hasattr(layer, "reads"):  # of ostinato.deepspeed.graph(): the layer itself
        layer = layer.layer
    if hasattr(layer, "tied_weight_attr"):
        return False
    kind = getattr(layer, "typename", type(layer))
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or why_not(kind):
        return False
    if isinstance(layer, nn.Module) and added_to(layer):
        return False
    return hasattr(kind, "sharded") or kind in (nn.Embedding, nn.Linear)


def mark_shardable(rows: list[Any], layers: Sequence[Any]) -> list[Any]:
    """`layers`: of the rows; none where the rows are operators."""
    for row, layer in zip_longest(rows, layers):
        row.shardable = layer is not None and can_be_cut(layer)
    return rows
