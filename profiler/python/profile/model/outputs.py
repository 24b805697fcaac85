# SPDX-License-Identifier: Apache-2.0
"""What a layer returns that cannot pass to another stage, where only tensors and tuples of tensors and None can.

    stays(outputs)                                         # Staying("a dict"); "" where all can pass
    of_outputs({1: Staying("a dict")}, stages=[3, 3])      # restrictions: layers 1 and 2 in one stage

Within a rank DeepSpeed passes on whatever a layer returns: a list, a dictionary, a tensor with additional
attributes. A plan may cut the model there.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ostinato.restrictions import Restriction

PLAIN = (torch.Tensor, torch.nn.Parameter)
# Prefixes of attributes that DeepSpeed and torch set on tensors.
NOT_ITS_OWN = ("_backward_hook_managers", "_dynamo", "ds_", "ostinato_")


class Staying(NamedTuple):
    what: str
    lost: bool = False  # the values pass, without it; else DeepSpeed refuses to send them


def stays(outputs: Any) -> Staying:
    what = no_tensors(outputs)
    return Staying(what) if what else Staying(stripped(outputs), lost=True)


def of_outputs(staying: Mapping[int, Staying], stages: Iterable[int]) -> list[Restriction]:
    """`staying`: by layer, but for the last one, what stays(); `stages`: number of layers of each stage of
    DeepSpeed's own partition, which loses the same where it cuts."""
    cut = set(accumulate(stages))
    return [
        Restriction("one_stage", f"layer {layer} returns {found.what}", layers=(layer, layer + 1))
        for layer, found in sorted(staying.items())
        if found.what and not (found.lost and layer + 1 in cut)
    ]


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


def no_tensors(outputs: Any) -> str:
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
