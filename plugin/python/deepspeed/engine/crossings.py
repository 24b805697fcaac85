# SPDX-License-Identifier: Apache-2.0
"""What crosses from a stage to the next: a tensor, or a tuple of tensors and None.

    outputs = crossing(stage, outputs, stock)      # raises OstinatoError by name for what would arrive as something else
    stripped(outputs)                              # 'tensors with the attribute "gate"': what no border keeps; "" for nothing

Within a rank DeepSpeed hands on whatever a layer returns: a list, a dictionary, a tensor with attributes of
its own. A plan may cut there.
"""

from typing import Any

import torch

from ..errors import OstinatoError
from ..data.items import own
from ..section.plans import Stage

PLAIN = (torch.Tensor, torch.nn.Parameter)
NOT_ITS_OWN = (
    "_backward_hook_managers",
    "_dynamo",
    "ds_",
    "ostinato_",
)  # attributes that DeepSpeed and torch give a tensor begin so


def crossing(stage: Stage, outputs: Any, stock: list[int], masked: bool = False) -> Any:
    """`outputs`, safe from what the stage's layers go on writing to: a mask that is a buffer, say. `stock`:
    DeepSpeed's own partition; `masked`: there, the last of several tensors arrives as booleans
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
            f"layer {last} hands on {outputs[-1].dtype} as the last of its tensors, of which DeepSpeed makes booleans where its own partition cuts the model, for it "
            "takes it for an attention mask (GPT2ModelPipe): hand on booleans, or call engine.set_has_attention_mask(False)"
        )
    what = _no_tensors(outputs) or ("" if last + 1 in stock else stripped(outputs))
    if what:
        raise OstinatoError(
            f"layer {last} hands on {what}, and the plan cuts the model after it: plain tensors cross there, and tuples of them and of None. "
            f"Let the layer return such, or keep layers {last} and {last + 1} in one stage of the placement"
        )
    return tuple(map(_kept, outputs)) if isinstance(outputs, tuple) else _kept(outputs)


def stripped(outputs: Any) -> str:
    """What of it does not arrive, though its numbers do."""
    if isinstance(outputs, tuple) and type(outputs) is not tuple:
        return f"a {type(outputs).__name__}"
    for tensor in filter(torch.is_tensor, outputs if isinstance(outputs, tuple) else (outputs,)):
        if type(tensor) not in PLAIN:
            return f"tensors of class {type(tensor).__name__}"
        if form := _form(tensor):
            return f"tensors that are {form}"
        if names := [name for name in vars(tensor) if not name.startswith(NOT_ITS_OWN)]:
            return f'tensors with the attribute "{names[0]}"'
    return ""


def _form(tensor: torch.Tensor) -> str:
    """What makes of it more, or less, than numbers one after the other; "" for nothing."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "on no device"
    return "" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def _no_tensors(outputs: Any) -> str:
    """The first thing that is none, where a stage can hand on tensors only."""
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
    """Of what has a history autograd finds changes."""
    return tensor if tensor is None or tensor.requires_grad else own(tensor)
