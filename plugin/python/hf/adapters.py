# SPDX-License-Identifier: Apache-2.0
"""Models that peft has put adapters into: which of its methods are layers' own business, and what it saves.

    model, wrapped = unwrapped(get_peft_model(model, LoraConfig(...)))
    check_adapters(given, untried=False)       # Refused: what peft does around the model, no layer of a pipeline would do
    names_saved(wrapped, shapes)               # what of all ranks' tensors goes into adapter_model.safetensors

peft is not imported here before a script has done so.
"""

import sys
from typing import Any

import torch

from .errors import Refused
from .outline import HUNG

# By `peft_type`. Compared with the model that has them (tests/python/hf/test_hf_peft.py); others run with
# layers(..., untried=True).
TRIED = (
    "C3A", "FOURIERFT", "HRA", "IA3", "LN_TUNING", "LOHA", "LOKR", "LORA", "MISS", "OFT", "RANDLORA", "ROAD", "SHIRA", "TRAINABLE_TOKENS",
    "VERA",
)  # fmt: skip
AROUND = {
    "ADALORA": "adds a term to the loss, and takes ranks away from its layers as training goes on",
    "POLY": "is told the task of every batch",
    "XLORA": "reads the hidden states of all blocks before it weighs its adapters",
}
PREFIX = "base_model.model."  # of the model's names in a PeftModel


def unwrapped(given) -> tuple[Any, Any]:
    """(the model itself, the PeftModel around it), or (given, None)."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(given, peft.PeftModel):
        return given, None
    for module in (given, given.base_model):
        if hung := next((kind for kind in HUNG if vars(module).get(kind)), None):
            raise Refused(
                f"a script has set {hung.strip('_')} on {type(module).__name__}, which no layer runs: set them on the embedding, blocks or head"
            )
    return given.get_base_model(), given


def check_adapters(given, untried: bool) -> None:
    """`given`: a PeftModel, or a model that has been given adapters in place. Raises Refused."""
    for name, config in (getattr(given, "peft_config", None) or {}).items():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if config.is_prompt_learning:
            raise Refused(
                f'adapter "{name}": {kind} puts tokens of its own before every batch, which no layer of a pipeline does'
            )
        if kind in AROUND:
            raise Refused(
                f'adapter "{name}": {kind} {AROUND[kind]}, which no layer of a pipeline can: {", ".join(TRIED)} can be trained'
            )
        if getattr(config, "alora_invocation_tokens", None) is not None:
            raise Refused(
                f'adapter "{name}": alora_invocation_tokens are looked for in every batch by peft, not by layers: leave them out'
            )
        if kind not in TRIED and not untried:
            raise Refused(
                f'adapter "{name}": {kind} was not tried: compare its losses with the model\'s own once, then call layers(..., untried=True). Tried '
                f"are {', '.join(TRIED)}"
            )


def is_put_aside(name: str) -> bool:
    """Whether a tensor is the model's own, below an adapter."""
    return any(part in name for part in (".base_layer.", ".original_module."))


def names_saved(wrapped, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Of tensors by the model's own names, those that PeftModel.save_pretrained() writes. Raises Refused
    where it writes what it computes."""
    from peft import get_peft_model_state_dict

    given = {PREFIX + name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    names = {id(value): name.removeprefix(PREFIX) for name, value in given.items()}
    found = [
        value
        for adapter in wrapped.peft_config
        for value in get_peft_model_state_dict(wrapped, given, adapter).values()
    ]
    if any(id(value) not in names for value in found):
        raise Refused(
            "save(): peft computes what it saves of these adapters, which are on several ranks: save the engine's checkpoint"
        )
    return {names[id(value)] for value in found}
