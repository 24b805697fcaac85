# SPDX-License-Identifier: Apache-2.0
"""What a stage may pass to the next: a tensor, or a tuple of tensors and None.

    outputs = crossing(stage, outputs, stock)      # raises OstinatoError for what would not arrive unchanged

What cannot pass: ostinato.profile.model.outputs.
"""

from typing import Any

import torch
from ostinato.profile.model.outputs import no_tensors, stripped

from ..errors import OstinatoError
from ..data.items import own
from ..section.plans import Stage


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
    what = no_tensors(outputs) or ("" if last + 1 in stock else stripped(outputs))
    if what:
        raise OstinatoError(
            f"layer {last} returns {what}, but the plan cuts the model after it, where only plain tensors and tuples of tensors and None can pass: "
            f"let the layer return these, or keep layers {last} and {last + 1} in one stage of the placement"
        )
    return tuple(map(_kept, outputs)) if isinstance(outputs, tuple) else _kept(outputs)


def _kept(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A copy, unless autograd notices changes by itself."""
    return tensor if tensor is None or tensor.requires_grad else own(tensor)
