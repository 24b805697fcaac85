# SPDX-License-Identifier: Apache-2.0
"""Layers from files are those that from_pretrained() reads, one at a time; what save() writes is read by it."""

import errno
import json
import os

import pytest
import torch
import torch.distributed as dist
import transformers
from ostinato import hf
from ostinato.errors import Error
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.hf_jobs import MICRO_BATCHES, Job, engine_of, train_hf
from support.hf_models import KINDS, Case, batch, built, own_loss, run, weights
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import bytes_of


@pytest.mark.parametrize("tied", everyday([False, True], True), ids=["own head", "tied head"])
@pytest.mark.parametrize("model", KINDS)
def test_layers_from_a_checkpoint(model, tied, tmp_path):
    case = Case(model, tied)
    case.make().save_pretrained(tmp_path, max_shard_size="20KB")
    whole = type(case.make()).from_pretrained(tmp_path)
    inputs = ("pixel_values",) if model == "vit" else ("input_ids",)
    layers = built(hf.layers(str(tmp_path), inputs))
    read = weights(layers)
    assert set(read) == set(whole.state_dict()) - set(whole.all_tied_weights_keys)
    assert [name for name, value in read.items() if not torch.equal(value, whole.state_dict()[name])] == []
    given, labels = batch(Case(model, tied, inputs=inputs))
    whole.eval()
    for module, _ in layers:
        module.eval()
    logits = run(layers, given)
    assert torch.equal(hf.loss(tmp_path)(logits, labels), own_loss(whole, given, labels).loss)


@pytest.mark.parametrize("both", everyday([False, True], False), ids=["one name", "both names"])
@pytest.mark.parametrize("model", everyday(["gpt2", "bert"], "bert"))
def test_tied_weights_are_read_under_either_name(model, both, tmp_path):
    made = Case(model, True).make()
    made.save_pretrained(tmp_path)
    held = load_file(file := tmp_path / "model.safetensors")
    for target, source in made.all_tied_weights_keys.items():
        held[target] = held[source].clone() if both else held.pop(source)
    save_file(held, file, metadata={"format": "pt"})
    read = weights(built(hf.layers(tmp_path)))
    assert all(torch.equal(read[name], made.state_dict()[name]) for name in read)


def test_the_files_hold_each_expert_apart(tmp_path):
    """As all checkpoints of Mixtral do: the model itself stacks them."""
    Case("mixtral").make().save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in file.keys()  # noqa: SIM118 (no mapping)


def test_only_a_layer_s_own_tensors_are_made(tmp_path, monkeypatch):
    Case().make().save_pretrained(tmp_path)
    specs, made = hf.layers(tmp_path), []
    place = transformers.core_model_loading.set_param_for_module
    monkeypatch.setattr(
        transformers.core_model_loading,
        "set_param_for_module",
        lambda *args: made.append(args[1]) or place(*args),
    )
    specs[2].build()
    assert len(made) == 9 and all(name.startswith("model.layers.1.") for name in made)


def test_a_type_may_be_asked_for(tmp_path):
    Case().make().save_pretrained(tmp_path)
    block = hf.layers(tmp_path, dtype=torch.bfloat16)[1].build()
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(block.block.mlp.up_proj.weight, whole.model.layers[0].mlp.up_proj.weight)
    tables = [dict(module.named_buffers()) for module in (block.model, whole)]
    assert torch.equal(tables[0]["model.rotary_emb.inv_freq"], tables[1]["model.rotary_emb.inv_freq"])


def test_a_base_model_s_checkpoint_gets_a_new_head_and_says_so(tmp_path, capfd):
    Case().make().model.save_pretrained(tmp_path)
    transformers.utils.logging.enable_propagation()
    layers = built(hf.layers(tmp_path, kind=transformers.LlamaForCausalLM))
    whole = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    read = weights(layers)
    assert all(
        torch.equal(read[name], value)
        for name, value in whole.state_dict().items()
        if name != "lm_head.weight"
    )
    assert read["lm_head.weight"].std() > 0


def saved(job: Job, folder: str) -> str:
    """What save() raised, or ""."""
    engine = engine_of(job)
    try:
        hf.save(engine, folder)
    except hf.Refused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("model", everyday(["gpt2", "bert", "qwen2_moe"], "gpt2", "qwen2_moe"))
def test_what_is_saved_is_read_back(model, world2, tmp_path):
    """Tied layers under a plan, in bf16: the files have the type that the weights have."""
    case = Case(model, True)
    plan = make_plan(tmp_path / "plan", Layout("looped", (2, 4, 6), (0, 1, 0, 1)), 8, MICRO_BATCHES)
    job = Job(case, {"plan": str(plan)}, {"bf16": {"enabled": True}}, save=str(tmp_path / "end"))
    trained = world2.run(train_hf, job)[0]["weights"]
    read = type(case.make()).from_pretrained(tmp_path / "end")
    tied = set(read.all_tied_weights_keys)
    assert read.dtype is torch.bfloat16 and tied
    assert {name: bytes_of(value) for name, value in read.state_dict().items() if name not in tied} == trained
    index = json.loads((tmp_path / "end" / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) == 2 and files <= set(os.listdir(tmp_path / "end"))


def test_what_could_not_be_read_back_is_refused(world2, tmp_path):
    for said in world2.run(saved, Job(Case(), change="adapt"), str(tmp_path / "end")):
        assert (
            'the layers hold "model.layers.0.self_attn.q_proj.base.weight"' in said
            and "use save(..., learned=True)" in said
        )
    assert not (tmp_path / "end").exists()


def test_an_older_file_that_would_be_read_instead_is_refused(world2, tmp_path):
    Case().make().save_pretrained(tmp_path)
    for said in world2.run(saved, Job(Case()), str(tmp_path)):
        assert "model.safetensors exists, and from_pretrained() would read it instead" in said


def save_on_a_full_disk(rank: int, folder: str, learned: bool) -> str:
    """What save() raises where that rank cannot write."""
    import safetensors.torch

    def full(*_args, **_named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine, write = engine_of(Job(Case())), safetensors.torch.save_file
    safetensors.torch.save_file = full if dist.get_rank() == rank else write
    try:
        hf.save(engine, folder, learned=learned)
    except Error as error:
        return str(error)
    finally:
        safetensors.torch.save_file = write
    return ""


@pytest.mark.parametrize(("rank", "learned"), [(1, False), (0, True)])
def test_what_one_rank_cannot_write_all_ranks_raise(rank, learned, world2, tmp_path):
    for said in world2.run(save_on_a_full_disk, rank, str(tmp_path), learned):
        assert f"rank {rank} could not write its part" in said and "No space left on device" in said


def replica_saves(folder: str) -> None:
    """Two replicas of one stage: each tensor is written once."""
    assert saved(Job(Case(), stages=1), folder) == ""
    dist.barrier()


def test_replicas_write_each_tensor_once(world2, tmp_path):
    world2.run(replica_saves, str(tmp_path))
    assert [name for name in os.listdir(tmp_path) if name.endswith(".safetensors")] == [
        "model-00001-of-00002.safetensors"
    ]
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model = Case().make()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in whole.state_dict().items())
