# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers from configurations, their batches, and their layers run one after the other in
one process."""

from dataclasses import dataclass, field

import torch
import transformers

VOCABULARY, WIDTH, HEADS, BLOCKS, BATCH, LENGTH, CLASSES = 48, 16, 2, 4, 2, 8, 5
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
    "num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}
# By model_type: the configuration and what it is given beside `tie_word_embeddings`.
KINDS: dict[str, tuple[str, dict]] = {
    "gpt2": ("GPT2Config", {
        "vocab_size": VOCABULARY, "n_positions": 32, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "bos_token_id": 1, "eos_token_id": 2,
    }),
    "llama": ("LlamaConfig", SIZES),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 3, "head_dim": 8}),
    "qwen2": ("Qwen2Config", SIZES | SLIDING),
    "qwen3": ("Qwen3Config", SIZES | SLIDING | {"head_dim": 8}),
    "mixtral": ("MixtralConfig", SIZES | {"num_local_experts": 4, "head_dim": 8, "intermediate_size": 16}),
    "qwen2_moe": ("Qwen2MoeConfig", SIZES | EXPERTS | {"shared_expert_intermediate_size": 8}),
    "qwen3_moe": ("Qwen3MoeConfig", SIZES | EXPERTS | {"head_dim": 8}),
    "gemma": ("GemmaConfig", SIZES | {"head_dim": 8}),
    "gemma2": ("Gemma2Config", SIZES | {"head_dim": 8, "sliding_window": 3, "query_pre_attn_scalar": 8}),
    "phi3": ("Phi3Config", SIZES),
    "olmo2": ("Olmo2Config", SIZES),
    "granite": ("GraniteConfig", SIZES | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "bert": ("BertConfig", {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "intermediate_size": 32,
    }),
    "vit": ("ViTConfig", {
        "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "intermediate_size": 32, "image_size": 16,
        "patch_size": 4, "num_labels": CLASSES,
    }),
}  # fmt: skip
# Every configuration's words for "nothing is dropped".
WITHOUT_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


IN_PEFT = "base_model.model."  # what peft puts before a model's names


@dataclass(frozen=True)
class Case:
    """`more`: of the configuration; `inputs`: what a batch holds."""

    model: str = "llama"
    tied: bool = False
    more: dict = field(default_factory=dict)
    inputs: tuple[str, ...] = ("input_ids",)

    def config(self):
        name, given = KINDS[self.model]
        return getattr(transformers, name)(**{**given, "tie_word_embeddings": self.tied, **self.more})

    def make(self, seed: int = 0):
        """The model; weights that are constant at the start (norms, biases) are drawn, too."""
        from ostinato.hf.sources import kind_of

        torch.manual_seed(seed)
        model = kind_of(config := self.config())(config).train()
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, 0.5, 0.2)
        return model


def batch(case: Case, seed: int = 1) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(inputs by name, labels): the rows are padded on the left, and one in five labels counts for nothing."""
    generator = torch.Generator().manual_seed(seed)
    if case.model == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator)}, torch.randint(
            CLASSES, (BATCH,), generator=generator
        )
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) >= torch.tensor([[3], [0]])).long()
    # Two sequences packed into a row.
    made = {
        "input_ids": tokens,
        "attention_mask": mask,
        "position_ids": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]).repeat(BATCH, 1),
        "token_type_ids": torch.randint(2, (BATCH, LENGTH), generator=generator),
    }
    ignored = torch.rand(BATCH, LENGTH, generator=generator) < 0.2
    if "attention_mask" in case.inputs:
        ignored |= mask == 0
    return {name: made[name] for name in case.inputs}, tokens.masked_fill(ignored, -100)


def own_loss(model, inputs: dict, labels, **more):
    """What the model returns by itself."""
    cached = {"use_cache": False} if model.can_generate() else {}
    return model(**inputs, labels=labels, **cached, **more)


def built(specs: list) -> list:
    """(module, forward_fn or None) of each layer, tied ones once, as a PipelineModule on one rank builds
    them."""
    tied: dict = {}
    made = []
    for spec in specs:
        key = getattr(spec, "key", None)
        module = (
            spec.build() if key is None else tied[key] if key in tied else tied.setdefault(key, spec.build())
        )
        made.append((module, getattr(spec, "forward_fn", None)))
    return made


def run(layers: list, inputs: dict):
    state = tuple(inputs.values()) if len(inputs) > 1 else next(iter(inputs.values()))
    for module, function in layers:
        state = module(state) if function is None else function(module, state)
    return state


def weights(layers: list) -> dict[str, torch.Tensor]:
    return {name: value for module, _ in layers for name, value in module.named_weights().items()}


def gradients(layers: list) -> dict[str, torch.Tensor | None]:
    """By the model's own names."""
    by_place = {p.data_ptr(): p.grad for module, _ in layers for p in module.parameters()}
    return {
        name: by_place[value.data_ptr()]
        for name, value in weights(layers).items()
        if value.data_ptr() in by_place
    }


def compare(case: Case, change=lambda model: None, mode=True) -> None:
    """The layers of a model, one after the other in one process, have its losses, logits and gradients.
    `change` may return another model."""
    from ostinato import hf

    model = case.make()
    model = change(model) or model
    layers = built(hf.layers(model, case.inputs))
    model.train(mode)
    for module, _ in layers:
        module.train(mode)
    loss_fn = hf.loss(model)
    for seed in (1, 2):  # gradients add up
        inputs, labels = batch(case, seed)
        torch.manual_seed(seed)
        expected = own_loss(model, inputs, labels)
        expected.loss.backward()
        torch.manual_seed(seed)
        outputs = run(layers, inputs)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        loss = loss_fn(outputs, labels)
        loss.backward()
        assert torch.equal(logits, expected.logits)
        assert torch.equal(loss, expected.loss)
    ours = gradients(layers)
    for name, parameter in model.named_parameters():
        name = name.removeprefix(IN_PEFT)
        if parameter.grad is None:
            assert ours[name] is None or not ours[name].any(), name
        else:
            assert torch.equal(ours[name], parameter.grad), name
