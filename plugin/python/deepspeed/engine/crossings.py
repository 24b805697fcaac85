# SPDX-License-Identifier: Apache-2.0
"""What a stage may pass to the next: a tensor, or a tuple of tensors and None.

    outputs = crossing(stage, outputs, stock)      # raises OstinatoError for what would not arrive unchanged
    stripped(outputs)                              # 'tensors with the attribute "gate"': what a transfer loses; "" for nothing

Within a rank DeepSpeed passes on whatever a layer returns: a list, a dictionary, a tensor with additional
attributes. A plan may cut the model there.
"""

from typing import Any

import torch

from ..errors import OstinatoError
from ..data.items import own
from ..section.plans import Stage

PLAIN = (torch.Tensor, torch.nn.Parameter)
# Prefixes of attributes that DeepSpeed and torch set on tensors.
NOT_ITS_OWN = ("_backward_hook_managers", "_dynamo", "ds_", "ostinato_")


def crossing(stage: Stage, outputs: Any, stock: list[int], masked: bool = False) -> Any:
    """`outputs`, copied where the stage's layers may write to them later (a mask that is a buffer, for example).
    `stock`: DeepSpeed's own partition; `masked`: in it, the last of several tensors arrives as booleans
    (GPT2ModelPipe).
    """
    last = stage.layers[-1]
    if (
        masked
        and isinstance(outputs, tuple)
        and outputs
        and torch.is_tensor(outputs[-1])
        and outputs[-1].dtype != torch.bool
    ):
        raise OstinatoError(
            f"layer {last} returns {outputs[-1].dtype} as its last tensor, which DeepSpeed takes for an attention mask (GPT2ModelPipe) and sends as "
            "booleans where its own partition cuts the model: return booleans, or call engine.set_has_attention_mask(False)"
        )
    what = _no_tensors(outputs) or ("" if last + 1 in stock else stripped(outputs))
    if what:
        raise OstinatoError(
            f"layer {last} returns {what}, but the plan cuts the model after it, where only plain tensors and tuples of tensors and None can pass: "
            f"let the layer return these, or keep layers {last} and {last + 1} in one stage of the placement"
        )
    return tuple(map(_kept, outputs)) if isinstance(outputs, tuple) else _kept(outputs)


def stripped(outputs: Any) -> str:
    """What the next stage would not get, although it gets the values."""
    if isinstance(outputs, tuple) and type(outputs) is not tuple:
        return f"a {type(outputs).__name__}"
    for tensor in filter(torch.is_tensor, outputs if isinstance(outputs, tuple) else (outputs,)):
        if type(tensor) not in PLAIN:
            return f"tensors of class {type(tensor).__name__}"
        if form := _form(tensor):
            return f"tensors that are {form}"
        if isinstance(tensor, torch.nn.Parameter):  # ZeRO sets attributes of these
            continue
        if names := [name for name in vars(tensor) if not name.startswith(NOT_ITS_OWN)]:
            return f'tensors with the attribute "{names[0]}"'
    return ""


def _form(tensor: torch.Tensor) -> str:
    """Why the tensor is not a plain dense one; "" where it is."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "on no device"
    return "" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def _no_tensors(outputs: Any) -> str:
    """The first output that is not a tensor; "" where all are."""
    if not isinstance(outputs, tuple):
        return "" if torch.is_tensor(outputs) else f"a {type(outputs).__name__}"
    return next(
        (
            f"a tuple with a {type(o).__name__} in it"
            for o in outputs
            if o is not None and not torch.is_tensor(o)
        ),
        "",
    )


def _kept(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A copy, unless autograd notices changes by itself."""
    return tensor if tensor is None or tensor.requires_grad else own(tensor)
