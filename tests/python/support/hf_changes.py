# SPDX-License-Identifier: Apache-2.0
"""What scripts do to a model before it trains: adapters, of their own or of peft, and parts that do not
learn."""

from torch import nn


class Adapter(nn.Module):
    """LoRA: a frozen linear layer, and two thin ones beside it. `up` begins with zeros elsewhere; here it
    learns from step 1."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + 2.0 * self.up(self.down(x))


def adapt(model) -> None:
    """Adapters on every attention of a LLaMA; nothing else learns."""
    model.requires_grad_(False)
    for block in model.model.layers:
        block.self_attn.q_proj = Adapter(block.self_attn.q_proj)


def adapt_second_half(model) -> None:
    model.requires_grad_(False)
    for block in model.model.layers[2:]:
        block.self_attn.q_proj = Adapter(block.self_attn.q_proj)


def freeze_first_half(model) -> None:
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[:2].requires_grad_(False)


def built_adapt(module) -> None:
    """The same as adapt() on the layers that this rank has."""
    module.requires_grad_(False)
    for part in module.children():
        if block := getattr(part, "block", None):
            block.self_attn.q_proj = Adapter(block.self_attn.q_proj)


def freeze_second_half(model) -> None:
    model.model.layers[2:].requires_grad_(False)
    model.model.norm.requires_grad_(False)
    model.lm_head.requires_grad_(False)


def each_adapt(model) -> None:
    """The same as adapt(), of what one layer has of the model."""
    model.requires_grad_(False)
    for attention in [
        module for module in model.modules() if isinstance(getattr(module, "q_proj", None), nn.Linear)
    ]:
        attention.q_proj = Adapter(attention.q_proj)


def peft_lora(model, target_modules=("q_proj", "down_proj"), **more):
    """What peft makes of a model; the second matrix of each adapter, which begins with zeros, is drawn."""
    import peft
    import torch

    made = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=list(target_modules), task_type="CAUSAL_LM", **more)
    )
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad and not parameter.any():
                parameter.normal_(0, 0.1)
    return made


def peft_dora(model):
    return peft_lora(model, use_dora=True, modules_to_save=["lm_head"])


def peft_dropout(model):
    return peft_lora(model, lora_dropout=0.3, bias="all", trainable_token_indices=[3, 4])


def peft_gpt2(model):
    return peft_lora(model, ["c_attn", "c_proj"], use_rslora=True)


def peft_loose(model):
    """One parameter learns that belongs to no adapter."""
    made = peft_lora(model)
    made.base_model.model.model.norm.requires_grad_(True)
    return made
