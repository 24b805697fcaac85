# SPDX-License-Identifier: Apache-2.0
"""Models with peft's adapters: which of peft's methods work within layers, and what peft saves.

    model, wrapped = unwrapped(get_peft_model(model, LoraConfig(...)))
    check_adapters(given, untried=False)       # Refused where peft does something around the model, which no layer of a pipeline would do
    names_saved(wrapped, shapes)               # which of all ranks' tensors go into adapter_model.safetensors

This imports peft only if the script has done so.
"""

import sys
from typing import Any

import torch

from .errors import Refused
from .outline import HUNG

# By `peft_type`. Compared with the model itself (tests/python/hf/test_hf_peft.py); other types run with
# layers(..., untried=True).
TRIED = (
    "C3A", "FOURIERFT", "HRA", "IA3", "LN_TUNING", "LOHA", "LOKR", "LORA", "MISS", "OFT", "RANDLORA", "ROAD", "SHIRA", "TRAINABLE_TOKENS",
    "VERA",
)  # fmt: skip
AROUND = {
    "ADALORA": "adds a term to the loss, and lowers the ranks of its layers during training",
    "POLY": "needs the task of every batch",
    "XLORA": "reads the hidden states of all blocks to weight its adapters",
}
PREFIX = "base_model.model."  # of the model's parameter names in a PeftModel


def unwrapped(given) -> tuple[Any, Any]:
    """(the model itself, the PeftModel around it), or (given, None)."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(given, peft.PeftModel):
        return given, None
    for module in (given, given.base_model):
        if hung := next((kind for kind in HUNG if vars(module).get(kind)), None):
            raise Refused(
                f"the script has set {hung.strip('_')} on {type(module).__name__}, which no layer runs: set them on the embedding, blocks or head"
            )
    return given.get_base_model(), given


def check_adapters(given, untried: bool) -> None:
    """`given`: a PeftModel, or a model with adapters added in place. Raises Refused."""
    for name, config in (getattr(given, "peft_config", None) or {}).items():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if config.is_prompt_learning:
            raise Refused(
                f'adapter "{name}": {kind} adds its own tokens to every batch, which no layer of a pipeline can do'
            )
        if kind in AROUND:
            raise Refused(
                f'adapter "{name}": {kind} {AROUND[kind]}, which no layer of a pipeline can do: use one of {", ".join(TRIED)}'
            )
        if getattr(config, "alora_invocation_tokens", None) is not None:
            raise Refused(
                f'adapter "{name}": peft looks for alora_invocation_tokens in every batch, which layers do not do: remove them'
            )
        if kind not in TRIED and not untried:
            raise Refused(
                f'adapter "{name}": {kind} was not tried: compare its losses once with the model\'s own, then call layers(..., untried=True). Tried: '
                f"{', '.join(TRIED)}"
            )


def is_put_aside(name: str) -> bool:
    """Whether a tensor belongs to the model itself, below an adapter."""
    return any(part in name for part in (".base_layer.", ".original_module."))


def names_saved(wrapped, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Which tensors, by the model's own names, PeftModel.save_pretrained() writes. Raises Refused if it would
    compute new ones."""
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
            "save(): peft would compute new tensors from these adapters, which are on several ranks: save the engine's checkpoint instead"
        )
    return {names[id(value)] for value in found}
