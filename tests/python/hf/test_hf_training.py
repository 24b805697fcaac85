# SPDX-License-Identifier: Apache-2.0
"""Models of transformers train on two ranks as they train in one process, under DeepSpeed alone and under a
plan."""

import pytest
import torch
import transformers
from support.hf_jobs import MICRO_BATCHES, Job, train_alone, train_hf
from support.hf_models import Case, batch, own_loss
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import bytes_of, close

MASKED = ("input_ids", "attention_mask")
WITHOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CASES = {
    "GPT-2, tied": Case("gpt2", True, WITHOUT, MASKED),
    "LLaMA": Case("llama", inputs=MASKED),
    "Qwen3, tied": Case("qwen3", True, inputs=MASKED),
    "Mixtral": Case("mixtral", inputs=MASKED),
    "BERT, tied": Case("bert", True, BERT, (*MASKED, "token_type_ids")),
    "ViT": Case("vit", inputs=("pixel_values",)),
}
WAVE = Layout("wave", (1, 3, 5), (0, 1, 1, 0))
# The tied layers stay on the ranks where DeepSpeed has them.
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))


def planned(case: Case, files, layout: Layout | None = None, **more) -> Job:
    layout = layout or (LOOPED if case.tied else WAVE)
    plan = make_plan(files / "plan", layout, 8 if case.tied else 6, MICRO_BATCHES)
    return Job(case, {"plan": str(plan)}, **more)


@pytest.mark.parametrize("name", everyday(CASES, "GPT-2, tied", "Mixtral", "ViT"))
def test_two_ranks_train_what_one_process_trains(name, world2, stock, tmp_path):
    case = CASES[name]
    alone = world2.run(train_alone, case)[0]
    theirs = stock(world2, Job(case), train_hf)[0]
    ours = world2.run(train_hf, planned(case, tmp_path))[0]
    assert ours["kind"] == "PlanEngine" and theirs["kind"] == "DeepSpeedEngine"
    assert ours["losses"] == theirs["losses"] and ours["evaluation"] == theirs["evaluation"]
    assert alone["losses"][-1] != alone["losses"][0]
    assert ours["weights"].keys() == theirs["weights"].keys() == alone["weights"].keys()
    assert [n for n in ours["weights"] if ours["weights"][n] != theirs["weights"][n]] == []
    if case.tied:  # the embedding's gradients and the head's are added up on their ranks first
        assert theirs["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        close(theirs["weights"], alone["weights"], 1e-6)
    else:
        assert theirs["losses"] == alone["losses"]
        assert [n for n in alone["weights"] if theirs["weights"][n] != alone["weights"][n]] == []


def test_the_loss_of_routers_trains_alike(world2, stock, tmp_path):
    """Their logits cross every border with the hidden state: sums of gradients are in another order there."""
    case = Case("mixtral", more={"output_router_logits": True, "router_aux_loss_coef": 0.5}, inputs=MASKED)
    alone = world2.run(train_alone, case)[0]
    theirs, ours = stock(world2, Job(case), train_hf)[0], world2.run(train_hf, planned(case, tmp_path))[0]
    for trained in (theirs, ours):
        assert trained["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        close(trained["weights"], alone["weights"], 1e-6)
    assert alone["losses"][-1] != alone["losses"][0]


def test_dropout_draws_the_same_under_a_plan(world2, stock, tmp_path):
    case = Case("gpt2", True)
    theirs, ours = stock(world2, Job(case), train_hf)[0], world2.run(train_hf, planned(case, tmp_path))[0]
    assert ours["losses"] == theirs["losses"] and ours["weights"] == theirs["weights"]


def test_a_looped_plan_of_bf16_and_zero_1_keeps_every_bit(world2, stock, tmp_path):
    case = CASES["LLaMA"]
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    theirs = stock(world2, Job(case, config=config), train_hf)[0]
    ours = world2.run(
        train_hf, planned(case, tmp_path, Layout("looped", (2, 3, 4), (0, 1, 0, 1)), config=config)
    )[0]
    assert ours["losses"] == theirs["losses"] and ours["weights"] == theirs["weights"]


def test_a_checkpoint_is_read_and_written_layer_by_layer(world2, tmp_path):
    """Trained from a model in memory and from its files: the same; and what is saved is what was trained."""
    case = CASES["Mixtral"]
    model = case.make()
    model.save_pretrained(tmp_path / "begin", max_shard_size="20KB")
    from_memory = world2.run(train_hf, planned(case, tmp_path))[0]
    job = planned(case, tmp_path, folder=str(tmp_path / "begin"), save=str(tmp_path / "end"))
    from_files = world2.run(train_hf, job)[0]
    assert from_files["losses"] == from_memory["losses"] and from_files["weights"] == from_memory["weights"]
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "end")
    assert type(read) is type(model) and read.config.dtype is torch.float32
    assert {name: bytes_of(value) for name, value in read.state_dict().items()} == from_files["weights"]
    inputs, labels = batch(case)
    assert own_loss(read, inputs, labels).loss.isfinite()
