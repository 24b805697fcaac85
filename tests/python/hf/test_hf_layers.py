# SPDX-License-Identifier: Apache-2.0
"""The layers of a transformers model, one after the other, are the model: losses, logits and gradients are
equal bit for bit."""

from types import MethodType

import pytest
import torch
import transformers
from ostinato import hf
from ostinato.hf.carving import Stub, StubCall, at_stubs
from support.hf_models import KINDS, Case, batch, built, compare, own_loss, run, weights
from support.tiers import everyday

MASKED = ("input_ids", "attention_mask")
ROPE = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 4},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4,
    },
}  # fmt: skip
STRANGE = {
    "eager attention": Case(more={"attn_implementation": "eager"}, inputs=MASKED),
    "attention dropout": Case(more={"attention_dropout": 0.3}),
    "positions given": Case(inputs=("input_ids", "position_ids")),
    "positions and mask": Case(inputs=(*MASKED, "position_ids")),
    "types of tokens": Case("bert", inputs=(*MASKED, "token_type_ids")),
    "types of tokens, GPT-2": Case("gpt2", inputs=(*MASKED, "token_type_ids")),
    "decoder of BERT's": Case("bert", more={"is_decoder": True}, inputs=MASKED),
    "biases": Case(more={"attention_bias": True, "mlp_bias": True}),
    "chunks": Case("bert", more={"chunk_size_feed_forward": 4}),
    "soft caps": Case(
        "gemma2", True, more={"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}, inputs=MASKED
    ),
    "every second window": Case(
        "qwen3", more={"layer_types": ["sliding_attention", "full_attention"] * 2}, inputs=MASKED
    ),
    "padding within the embedding": Case(more={"pad_token_id": 5}),
    "experts": Case("mixtral", more={"sliding_window": 3, "router_jitter_noise": 0.0}, inputs=MASKED),
    **{
        f"{name} rope": Case(more={"rope_parameters": ROPE[name], "max_position_embeddings": 6})
        for name in ROPE
    },
}


def inputs_of(model: str) -> tuple[str, ...]:
    return ("pixel_values",) if model == "vit" else MASKED


@pytest.mark.parametrize("tied", everyday([False, True], False), ids=["own head", "tied head"])
@pytest.mark.parametrize("model", KINDS)
def test_every_model_is_its_layers(model, tied):
    compare(Case(model, tied, inputs=inputs_of(model)))


ROUTED = {"words": {}, "mask": {"inputs": MASKED}, "tied head": {"inputs": MASKED, "tied": True}}


@pytest.mark.parametrize("name", everyday(ROUTED, "tied head"))
@pytest.mark.parametrize("model", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_the_loss_of_routers_is_the_models_own(model, name):
    more = ROUTED[name]
    case = Case(model, more={"output_router_logits": True, "router_aux_loss_coef": 0.5}, **more)
    compare(case)
    inputs, labels = batch(case)
    assert not torch.equal(
        own_loss(case.make(), inputs, labels).loss, own_loss(Case(model, **more).make(), inputs, labels).loss
    )


def test_blocks_without_experts_have_no_router():
    compare(Case("qwen2_moe", more={"output_router_logits": True, "mlp_only_layers": [1, 3]}, inputs=MASKED))


@pytest.mark.parametrize("name", STRANGE)
def test_configurations_of_strangers(name):
    compare(STRANGE[name])


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_dropout_off_in_evaluation(model):
    compare(Case(model, True, inputs=MASKED), mode=False)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_stays_on(reentrant):
    calls = []
    checkpoint = torch.utils.checkpoint.checkpoint

    def counted(*args, **more):
        calls.append(1)
        return checkpoint(*args, **more)

    def switch_on(model):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        for block in model.transformer.h:
            block._gradient_checkpointing_func = counted if reentrant else block._gradient_checkpointing_func

    compare(Case("gpt2", inputs=MASKED), switch_on)
    assert len(calls) == (16 if reentrant else 0)  # 4 blocks, 2 batches, the model and its layers


@pytest.mark.parametrize("model", ["llama", "gemma2", "mixtral"])
def test_half_precision_is_the_model_s(model):
    compare(Case(model, inputs=MASKED), lambda model: model.to(torch.bfloat16))


def test_types_are_mixed_as_the_model_mixes_them():
    def end_in_float(model):
        model.to(torch.bfloat16)
        model.model.norm.float()
        model.lm_head.float()

    compare(Case(inputs=MASKED), end_in_float)


def test_frozen_parts_stay_frozen_and_adapters_stay_in():
    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.down = base, torch.nn.Linear(base.in_features, 2, bias=False)
            self.up = torch.nn.Linear(2, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def adapt(model):
        model.requires_grad_(False)
        for block in model.model.layers:
            block.self_attn.q_proj = Adapted(block.self_attn.q_proj)

    compare(Case(inputs=MASKED), adapt)


def test_every_label_ignored_is_the_model_s_nan():
    case = Case()
    model = case.make()
    inputs, labels = batch(case)
    labels = torch.full_like(labels, -100)
    logits = run(built(hf.layers(model)), inputs)
    assert own_loss(model, inputs, labels).loss.isnan() and hf.loss(model)(logits, labels).isnan()


@pytest.mark.parametrize("count", [11, torch.tensor(11)])
def test_a_count_of_labels_takes_the_place_of_the_mean(count):
    case = Case()
    model = case.make()
    inputs, labels = batch(case)
    logits = run(built(hf.layers(model)), inputs)
    assert torch.equal(
        hf.loss(model)(logits, (labels, count)),
        own_loss(model, inputs, labels, num_items_in_batch=count).loss,
    )


def test_a_count_of_labels_takes_the_place_of_the_mean_in_a_masked_model():
    """BERT itself takes no count."""
    case = Case("bert")
    model = case.make()
    inputs, labels = batch(case)
    logits, loss = run(built(hf.layers(model)), inputs), hf.loss(model)
    found = (labels != -100).sum()
    torch.testing.assert_close(loss(logits, (labels, 2 * found)), loss(logits, labels) / 2)


def test_a_loss_that_the_script_gives_the_model_is_the_loss():
    case = Case()
    model = case.make()
    inputs, labels = batch(case)
    usual = own_loss(model, inputs, labels).loss
    own = model.loss_function
    model.loss_function = lambda *args, **more: 3 * own(*args, **more)
    logits = run(built(hf.layers(model)), inputs)
    found = hf.loss(model)(logits, labels)
    assert torch.equal(found, own_loss(model, inputs, labels).loss) and not torch.equal(found, usual)


class PlainForCausalLM(transformers.LlamaForCausalLM):
    """A script's class that computes what transformers' class computes."""


def test_a_script_s_class_is_its_layers():
    def as_plain(model):
        made = PlainForCausalLM(model.config)
        made.load_state_dict(model.state_dict())
        return made

    compare(Case(), as_plain)


def test_a_type_of_loss_that_the_script_sets_is_the_loss():
    compare(Case(), lambda model: setattr(model, "loss_type", "ForMaskedLM"))


@pytest.mark.parametrize("mode", [True, False])
def test_a_forward_bound_to_its_module_stays_in(mode):
    def forward(self, x):
        return self.down_proj(self.drop(self.act_fn(self.gate_proj(x))))

    def change(model):
        mlp = model.model.layers[1].mlp
        mlp.drop = torch.nn.Dropout(0.3)
        mlp.forward = MethodType(forward, mlp)

    compare(Case(), change, mode)


def test_attributes_of_parameters_stay():
    model = Case().make()
    model.model.norm.weight.no_decay = True
    read = weights(built(hf.layers(model)))
    assert [name for name, value in read.items() if hasattr(value, "no_decay")] == ["model.norm.weight"]


def test_a_configuration_s_weights_are_drawn_as_the_model_draws_them():
    """GPT-2 scales those that end a residual branch."""
    case = Case("gpt2", more={"n_embd": 128, "n_head": 2})
    model = transformers.GPT2LMHeadModel(case.config())
    torch.manual_seed(3)
    ours = {
        name: value
        for module, _ in built(hf.layers(case.config()))
        for name, value in module.named_weights().items()
    }
    assert ours.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.isclose(ours[name].std(), value.std(), rtol=0.15, atol=1e-6), name


def test_layers_hold_their_own_weights_only():
    model = Case().make()
    sizes = [sum(p.numel() for p in module.parameters()) for module, _ in built(hf.layers(model))]
    assert sum(sizes) == sum(p.numel() for p in model.parameters())
    assert max(sizes) < sum(sizes) / 2


def test_rotary_tables_keep_their_type_in_half_precision():
    block = built(hf.layers(Case().make()))[1][0].to(torch.bfloat16)
    table = dict(block.named_buffers())["model.model.rotary_emb.inv_freq"]
    assert table.dtype is torch.float32 and all(p.dtype is torch.bfloat16 for p in block.parameters())
    assert torch.equal(table, Case().make().model.rotary_emb.inv_freq)


def test_weights_of_other_layers_are_where_the_hidden_states_are():
    """Models ask them for their dtype and device."""
    stub, hidden = (
        Stub("head").in_place_of(torch.nn.Linear(2, 2)),
        torch.empty(1, dtype=torch.half, device="meta"),
    )
    with at_stubs(StubCall(lambda *_: None, hidden)):
        assert (stub.weight.dtype, stub.weight.device) == (hidden.dtype, hidden.device)
