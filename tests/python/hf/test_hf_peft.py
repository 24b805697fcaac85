# SPDX-License-Identifier: Apache-2.0
"""Models that peft has put adapters into: layers of their own numbers, trained under plans, saved as peft
reads them; or refused by name."""

import pytest
import torch
from ostinato import hf
from support.hf_changes import peft_lora
from support.hf_jobs import MICRO_BATCHES, Job, refused_save, train_alone, train_hf
from support.hf_models import WITHOUT_DROPOUT, Case, batch, built, compare, own_loss, run
from support.plans import Layout, make_plan
from support.profiling import profile
from support.tiers import everyday
from support.training import bytes_of

peft = pytest.importorskip("peft")

CASE = Case(inputs=("input_ids", "attention_mask"))  # front, 4 blocks, tail
TIED, GPT2 = Case(tied=True, inputs=CASE.inputs), Case("gpt2", True, WITHOUT_DROPOUT["gpt2"], CASE.inputs)
HALVES, WAVE = Layout("halves", (3,), (0, 1)), Layout("wave", (1, 3, 5), (0, 1, 1, 0))
SPLIT = Layout("split", (3,), (0, 1), split=True, method="zb-h1")
TIED_HALVES = Layout("halves", (4,), (0, 1))
HERE = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
DRAWN = HERE | {"init_weights": False}
METHODS = {
    "C3A": lambda: peft.C3AConfig(block_size=4, **HERE),
    "FourierFT": lambda: peft.FourierFTConfig(n_frequency=20, **HERE),
    "HRA": lambda: peft.HRAConfig(r=2, **DRAWN),
    "IA3": lambda: peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
    ),
    "norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm", "norm"], task_type="CAUSAL_LM"),
    "LoHa": lambda: peft.LoHaConfig(r=2, **DRAWN),
    "LoKr": lambda: peft.LoKrConfig(r=2, **DRAWN),
    "MiSS": lambda: peft.MissConfig(r=2, **HERE),
    "OFT": lambda: peft.OFTConfig(oft_block_size=4, **DRAWN),
    "RandLoRA": lambda: peft.RandLoraConfig(r=2, **HERE),
    "RoAd": lambda: peft.RoadConfig(group_size=16, **DRAWN),
    "SHiRA": lambda: peft.ShiraConfig(r=2, **HERE),
    "tokens": lambda: peft.TrainableTokensConfig(token_indices=[3, 4], task_type="CAUSAL_LM"),
    "VeRA": lambda: peft.VeraConfig(r=2, **DRAWN),
}
LORA = {
    "plain": {},
    "all linear layers": {"target_modules": "all-linear"},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "DoRA": {"use_dora": True},
    "dropout": {"lora_dropout": 0.5},
    "biases": {"bias": "all", "lora_bias": False},
    "whole modules": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "some blocks": {"layers_to_transform": [2, 3], "rank_pattern": {"layers.2.*": 4}},
    "tokens": {"trainable_token_indices": [3, 4]},
}


def with_lora(**more):
    given = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **more}

    def change(model):
        made = peft.get_peft_model(model, peft.LoraConfig(**given))
        for name, parameter in made.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.1)
        return made

    return change


@pytest.mark.parametrize("name", METHODS)
def test_what_peft_wraps_is_its_layers(name):
    compare(CASE, lambda model: peft.get_peft_model(model, METHODS[name]()))


@pytest.mark.parametrize("name", LORA)
def test_every_form_of_lora_is_its_layers(name):
    compare(CASE, with_lora(**LORA[name]))


def test_blocks_with_adapters_are_measured_once():
    """From the first whose input has a gradient."""
    case = Case(more={"num_hidden_layers": 5})
    model = with_lora(lora_dropout=0.5)(case.make())
    inputs, _ = batch(case)
    rows = profile(hf.layers(model, case.inputs), inputs["input_ids"]).layers
    assert [row.same_as for row in rows] == [-1, -1, -1, 2, 2, 2, -1]


def test_adapters_beside_a_tied_head_and_in_experts():
    compare(TIED, with_lora())
    compare(GPT2, with_lora(target_modules=["c_attn"]))
    compare(
        Case("mixtral", inputs=CASE.inputs),
        with_lora(target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]),
    )


def test_two_adapters_half_precision_and_recomputation():
    def two(model):
        made = with_lora()(model)
        made.add_adapter("other", peft.LoraConfig(r=3, target_modules=["k_proj"]))
        made.base_model.set_adapter(["default", "other"])
        return made

    def recomputed(model):
        # Peft then lets the embedding's output require gradients.
        model.gradient_checkpointing_enable({"use_reentrant": True})
        return with_lora()(model)

    compare(CASE, two)
    compare(CASE, lambda model: with_lora()(model.to(torch.bfloat16)))
    compare(CASE, recomputed)


def test_merged_adapters_are_the_models_own_and_in_place_ones_too():
    compare(CASE, lambda model: with_lora()(model).merge_and_unload().requires_grad_(True))
    compare(CASE, lambda model: model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"])))


REFUSED = {
    "prompts": (
        lambda m: peft.get_peft_model(m, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
        'adapter "default": PROMPT_TUNING adds its own tokens to every batch',
    ),
    "AdaLoRA": (
        lambda m: peft.get_peft_model(m, peft.AdaLoraConfig(total_step=9, tinit=1, tfinal=1, **HERE)),
        'adapter "default": ADALORA adds a term to the loss',
    ),
    "AdaLoRA, the model within": (
        lambda m: peft.get_peft_model(m, peft.AdaLoraConfig(total_step=9, tinit=1, tfinal=1, **HERE)).get_base_model(),
        'adapter "default": ADALORA adds a term to the loss',
    ),
    "aLoRA": (with_lora(alora_invocation_tokens=[5]), "peft looks for alora_invocation_tokens in every batch"),
    "untried": (
        lambda m: peft.get_peft_model(m, peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=2)),
        'adapter "default": ADAPTION_PROMPT was not tried.*untried=True.*LORA',
    ),
    "blocks twice": (with_lora(layer_replication=[[0, 2], [1, 4]]), r"model.layers.1.*and model.layers.2.* are one tensor"),
    "a bank for all blocks": (
        lambda m: peft.get_peft_model(m, peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=8, **HERE)), "vblora_vector_bank.* are one tensor",
    ),
    "classes": (
        lambda m: peft.get_peft_model(__import__("transformers").LlamaForSequenceClassification(m.config), peft.LoraConfig(**HERE | {"task_type": "SEQ_CLS"})),
        "LlamaForSequenceClassification: ostinato does not know the loss of this class",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    wrap, message = REFUSED[name]
    wrapped = wrap(CASE.make())
    with pytest.raises(hf.Refused, match=message):
        hf.layers(wrapped, CASE.inputs, untried=name in ("AdaLoRA", "a bank for all blocks"))


@pytest.mark.parametrize("more", [
    {"modules_to_save": ["lm_head"]}, {"modules_to_save": ["embed_tokens"]}, {"trainable_token_indices": [3]}, {"target_modules": ["embed_tokens"]},
], ids=str)  # fmt: skip
def test_a_tied_head_that_adapters_change_is_refused(more):
    with pytest.raises(
        hf.Refused, match="model.embed_tokens and lm_head share their weight, but adapters change one of them"
    ):
        hf.layers(with_lora(**more)(TIED.make()))


def test_hooks_on_the_wrapper_are_refused():
    wrapped = with_lora()(CASE.make())
    wrapped.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(
        hf.Refused, match="the script has set forward_hooks on PeftModelForCausalLM, which no layer runs"
    ):
        hf.layers(wrapped)


TRAINED = [
    (CASE, "peft_lora", HALVES),
    (CASE, "peft_lora", WAVE),
    (CASE, "peft_lora", SPLIT),
    (CASE, "peft_dora", WAVE),
    (GPT2, "peft_gpt2", TIED_HALVES),
]


@pytest.mark.parametrize(
    ("case", "change", "layout"),
    everyday(TRAINED, *TRAINED[2:]),
    ids=lambda value: getattr(value, "name", getattr(value, "model", value)),
)
def test_adapters_train_under_plans_as_in_one_process(case, change, layout, world2, tmp_path):
    plan = make_plan(tmp_path, layout, 8 if case.tied else 6, MICRO_BATCHES)
    alone = world2.run(train_alone, case, change)[0]
    ours = world2.run(train_hf, Job(case, {"plan": str(plan)}, change=change))[0]
    assert ours["losses"] == alone["losses"] and alone["losses"][0] != alone["losses"][-1]
    assert ours["weights"] == alone["weights"]


BF16_ZERO_1 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}


@pytest.mark.parametrize("config", everyday([{}, BF16_ZERO_1], BF16_ZERO_1), ids=["fp32", "bf16, ZeRO-1"])
def test_deepspeed_alone_trains_the_same_with_dropout(config, world2, tmp_path):
    plan = make_plan(tmp_path, HALVES, 6, MICRO_BATCHES)
    theirs = world2.run(train_hf, Job(CASE, change="peft_dropout", config=config))[0]
    ours = world2.run(train_hf, Job(CASE, {"plan": str(plan)}, change="peft_dropout", config=config))[0]
    assert ours["losses"] == theirs["losses"] and ours["weights"] == theirs["weights"]


@pytest.mark.parametrize("change", everyday(["peft_lora", "peft_dora"], "peft_dora"))
def test_peft_reads_what_is_saved(change, world2, tmp_path):
    plan = make_plan(tmp_path / "plan", WAVE, 6, MICRO_BATCHES)
    ours = world2.run(train_hf, Job(CASE, {"plan": str(plan)}, change=change, learned=str(tmp_path / "end")))[
        0
    ]
    again = peft.PeftModel.from_pretrained(CASE.make(), tmp_path / "end", is_trainable=True)
    found = {
        name.removeprefix("base_model.model."): bytes_of(value) for name, value in again.state_dict().items()
    }
    assert found == ours["weights"]
    assert any(p.requires_grad for p in again.parameters())
    inputs, labels = batch(CASE)
    assert torch.equal(
        run(built(hf.layers(again, CASE.inputs)), inputs), own_loss(again.train(), inputs, labels).logits
    )


def test_what_learns_outside_of_adapters_is_not_lost(world2):
    for said in world2.run(refused_save, Job(CASE, change="peft_loose"), True):
        assert (
            '"model.norm.weight" (1 such) is trainable but in no adapter, so peft would not save it: add it to modules_to_save'
            in said
        )
    for said in world2.run(refused_save, Job(CASE, change="peft_lora"), False):
        assert "which LlamaForCausalLM does not have: to save adapters, use save(..., learned=True)" in said


def test_the_changed_weights_of_jobs_are_drawn():
    """Else half of the adapters would not be seen in any loss."""
    assert all(parameter.any() for parameter in peft_lora(CASE.make()).parameters())
