# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's models as lists of layers: their own blocks, with what a block needs beside the hidden state
riding along.

Tiny configurations, no weights from anywhere. Adapters are what a user writes to put such a model into a
PipelineModule: rotary embeddings are computed where they are used, because DeepSpeed expects a gradient for
every floating-point tensor that it sends.
"""

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    BertConfig, GPT2Config, LlamaConfig, MixtralConfig, Qwen2MoeConfig, ResNetConfig, T5Config, ViTConfig, WhisperConfig,
)  # fmt: skip
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeDecoderLayer
from transformers.models.resnet.modeling_resnet import ResNetEmbeddings, ResNetStage
from transformers.models.t5.modeling_t5 import T5Block, T5LayerNorm
from transformers.models.vit.modeling_vit import ViTEmbeddings, ViTLayer
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer, WhisperEncoderLayer

from .hazards import cross_entropy, spec
from .model import Model

VOCABULARY, WIDTH, HEADS, BLOCKS, BATCH, LENGTH, CLASSES = 48, 16, 2, 6, 2, 8, 5
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
}
HUGGING_FACE: dict[str, Model] = {}


def tokens(generator):
    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def configured(kind, **sizes):
    config = kind(bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes)
    config._attn_implementation = "sdpa"
    return config


def model(name: str, batch=tokens, **more):
    def add(layers):
        HUGGING_FACE[name] = Model(name, layers, batch, cross_entropy, **more)
        return layers

    return add


def begun(module):
    """The blocks leave their weights to the model around them."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1)


class Head(nn.Module):
    """(hidden, ...) -> scores."""

    def __init__(self, norm, classes=VOCABULARY):
        super().__init__()
        self.norm, self.out = norm(WIDTH), nn.Linear(WIDTH, classes, bias=False)

    def forward(self, given):
        return self.out(self.norm(given[0] if isinstance(given, tuple) else given))


# GPT-2


class GPT2Positions(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wpe, self.drop = nn.Embedding(config.n_positions, WIDTH), nn.Dropout(config.embd_pdrop)

    def forward(self, hidden):
        return self.drop(hidden + self.wpe(torch.arange(hidden.size(1))))


def scores(embedding, hidden):
    return hidden @ embedding.weight.t()


def gpt2(tied: bool = False, **dropout) -> list:
    from deepspeed.pipe import TiedLayerSpec

    sizes = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS}
    config = configured(GPT2Config, vocab_size=VOCABULARY, **sizes, **dropout)
    first, last = spec(nn.Embedding, VOCABULARY, WIDTH), spec(nn.Linear, WIDTH, VOCABULARY)
    if tied:
        first = TiedLayerSpec("wte", nn.Embedding, VOCABULARY, WIDTH)
        last = TiedLayerSpec("wte", nn.Embedding, VOCABULARY, WIDTH, forward_fn=scores)
    blocks = (spec(GPT2Block, config, layer_idx=i) for i in range(BLOCKS))
    return [first, spec(GPT2Positions, config), *blocks, spec(nn.LayerNorm, WIDTH), last]


WITHOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
model("GPT-2", shardable=True)(lambda: gpt2(**WITHOUT))
model("GPT-2, tied")(lambda: gpt2(True, **WITHOUT))
model("GPT-2, dropout")(gpt2)


# Decoders with rotary embeddings


class Embedding(nn.Module):
    """tokens -> (hidden, positions)."""

    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, WIDTH)

    def forward(self, drawn):
        return self.embed(drawn), torch.arange(drawn.size(1)).repeat(drawn.size(0), 1)


class Decoder(nn.Module):
    """(hidden, positions) -> the same, by a decoder layer of the library."""

    def __init__(self, kind, config, index):
        super().__init__()
        self.layer, self.rotary = kind(config, index), LlamaRotaryEmbedding(config)
        begun(self)

    def forward(self, given):
        hidden, positions = given
        return self.layer(
            hidden, position_embeddings=self.rotary(hidden, positions), position_ids=positions
        ), positions


def decoders(kind, config) -> list:
    return [
        spec(Embedding, config),
        *(spec(Decoder, kind, config, i) for i in range(BLOCKS)),
        spec(Head, LlamaRMSNorm),
    ]


@model("LLaMA")
def _llama():
    return decoders(
        LlamaDecoderLayer, configured(LlamaConfig, **SIZES, intermediate_size=32, num_key_value_heads=1)
    )


@model("Mixtral")
def _mixtral():
    sizes = {
        "intermediate_size": 16,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    return decoders(MixtralDecoderLayer, configured(MixtralConfig, **SIZES, **sizes))


@model("Qwen2-MoE")
def _qwen():
    sizes = {"intermediate_size": 16, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2}
    sizes |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    return decoders(Qwen2MoeDecoderLayer, configured(Qwen2MoeConfig, **SIZES, **sizes))


# BERT


def masked(generator):
    """((tokens, what counts), labels where a token was masked)."""
    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    counts = torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1), generator=generator)
    hidden = torch.rand(BATCH, LENGTH, generator=generator) < 0.5
    return (drawn.masked_fill(hidden, 0), counts), drawn.masked_fill(~hidden, -100)


class BertFront(BertEmbeddings):
    def forward(self, given):
        drawn, counts = given
        return super().forward(drawn), counts[:, None, None, :].contiguous()


class BertBlock(BertLayer):
    def forward(self, given):
        hidden, counts = given
        return super().forward(hidden, attention_mask=counts), counts


def bert(**dropout) -> list:
    config = configured(BertConfig, **SIZES, intermediate_size=32, max_position_embeddings=LENGTH, **dropout)
    return [
        spec(BertFront, config),
        *(spec(BertBlock, config) for _ in range(BLOCKS)),
        spec(Head, nn.LayerNorm),
    ]


model("BERT", batch=masked)(lambda: bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
model("BERT, dropout, seed_layers", batch=masked, pipeline={"seed_layers": True})(bert)


# Pictures


def pictures(generator):
    return torch.randn(BATCH, 3, 16, 16, generator=generator), torch.randint(
        CLASSES, (BATCH,), generator=generator
    )


class Classifier(Head):
    def __init__(self):
        super().__init__(nn.LayerNorm, CLASSES)

    def forward(self, hidden):
        return super().forward(hidden[:, 0])


@model("ViT", batch=pictures)
def _vit():
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = configured(ViTConfig, **sizes, intermediate_size=32, image_size=16, patch_size=4)
    return [spec(ViTEmbeddings, config), *(spec(ViTLayer, config) for _ in range(BLOCKS)), spec(Classifier)]


class Pooled(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.out = nn.Linear(channels, CLASSES)

    def forward(self, features):
        return self.out(features.mean((2, 3)))


@model("ResNet", batch=pictures)
def _resnet():
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16, 16, 16], depths=[1] * 6, layer_type="basic"
    )
    widths = [config.embedding_size, *config.hidden_sizes]
    stages = (
        spec(ResNetStage, config, widths[i], widths[i + 1], stride=1 + i % 2, depth=1) for i in range(6)
    )
    return [spec(ResNetEmbeddings, config), *stages, spec(Pooled, widths[-1])]


# Encoders with decoders


def speech(generator):
    drawn, labels = tokens(generator)
    return (torch.randn(BATCH, 4, 2 * LENGTH, generator=generator), drawn), labels


class SpeechFront(nn.Module):
    """(features, tokens) -> (hidden, tokens)."""

    def __init__(self, config):
        super().__init__()
        self.conv1 = nn.Conv1d(config.num_mel_bins, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.positions = nn.Embedding(config.max_source_positions, WIDTH).requires_grad_(False)

    def forward(self, given):
        features, drawn = given
        made = functional.gelu(self.conv2(functional.gelu(self.conv1(features)))).permute(0, 2, 1)
        return made + self.positions.weight[: made.size(1)], drawn


class SpeechEncoder(WhisperEncoderLayer):
    def forward(self, given):
        return super().forward(given[0], None), given[1]


class TextFront(nn.Module):
    """(hidden, tokens) -> (hidden of the text, hidden of the speech)."""

    def __init__(self, config):
        super().__init__()
        self.norm, self.embed = nn.LayerNorm(WIDTH), nn.Embedding(config.vocab_size, WIDTH)

    def forward(self, given):
        return self.embed(given[1]), self.norm(given[0])


class SpeechDecoder(WhisperDecoderLayer):
    def forward(self, given):
        return super().forward(given[0], encoder_hidden_states=given[1], use_cache=False), given[1]


@model("Whisper", batch=speech)
def _whisper():
    sizes = {
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
    }
    config = configured(WhisperConfig, vocab_size=VOCABULARY, num_mel_bins=4, d_model=WIDTH, **sizes)
    encoder = (spec(SpeechEncoder, config) for _ in range(3))
    decoder = (spec(SpeechDecoder, config, i) for i in range(3))
    return [spec(SpeechFront, config), *encoder, spec(TextFront, config), *decoder, spec(Head, nn.LayerNorm)]


def translation(generator):
    drawn, labels = tokens(generator)
    return (torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator), drawn), labels


class T5Front(nn.Module):
    """(tokens, tokens to come) -> (hidden, tokens to come)."""

    def __init__(self, config):
        super().__init__()
        self.embed, self.drop = nn.Embedding(config.vocab_size, WIDTH), nn.Dropout(config.dropout_rate)

    def forward(self, given):
        return self.drop(self.embed(given[0])), given[1]


class T5Encoder(nn.Module):
    """(hidden, tokens[, bias]) -> (hidden, tokens, bias): the first makes the relative positions' bias for
    all, a learnt one."""

    def __init__(self, config, first):
        super().__init__()
        self.block = T5Block(config, has_relative_attention_bias=first, layer_idx=0)
        begun(self)

    def forward(self, given):
        hidden, drawn, *bias = given
        hidden, bias, _ = self.block(hidden, position_bias=bias[0] if bias else None)
        return hidden, drawn, bias


class T5Middle(T5Front):
    """(hidden, tokens, bias) -> (hidden of the tokens, hidden of the encoder)."""

    def __init__(self, config):
        super().__init__(config)
        self.norm = T5LayerNorm(WIDTH)

    def forward(self, given):
        return self.drop(self.embed(given[1])), self.drop(self.norm(given[0]))


class T5Decoder(T5Encoder):
    """(hidden, encoded[, bias]) -> (hidden, encoded, bias)."""

    def forward(self, given):
        hidden, encoded, *bias = given
        mask = torch.full((hidden.size(1), hidden.size(1)), torch.finfo(hidden.dtype).min).triu(1)[None, None]
        hidden, bias, _ = self.block(
            hidden,
            attention_mask=None if bias else mask,
            position_bias=bias[0] if bias else None,
            encoder_hidden_states=encoded,
        )
        return hidden, encoded, bias


def t5(rate: float) -> list:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": HEADS}
    encoder = configured(T5Config, vocab_size=VOCABULARY, **sizes, dropout_rate=rate)
    decoder = configured(T5Config, vocab_size=VOCABULARY, **sizes, dropout_rate=rate, is_decoder=True)
    blocks = (
        [spec(T5Encoder, encoder, i == 0) for i in range(3)],
        [spec(T5Decoder, decoder, i == 0) for i in range(3)],
    )
    return [spec(T5Front, encoder), *blocks[0], spec(T5Middle, decoder), *blocks[1], spec(Head, T5LayerNorm)]


model("T5", batch=translation)(lambda: t5(0.0))
model("T5, dropout", batch=translation)(lambda: t5(0.1))
