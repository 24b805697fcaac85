# SPDX-License-Identifier: Apache-2.0
"""What would train to other numbers is refused by its name, before anything is built where that can be known."""

from types import MethodType

import pytest
import torch
import transformers
from ostinato import hf
from ostinato.hf.refusals import check_class
from support.hf_models import SIZES, Case, batch, built, run, weights

T5 = transformers.T5Config(vocab_size=48, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)


def with_routers():
    """Of a model that has none."""
    config = Case().config()
    config.output_router_logits = True
    return config


REFUSED = {
    "T5": (lambda: T5, "t5 cannot be turned into a list of layers.*learnt relative position bias"),
    "routers": (lambda: with_routers(), "output_router_logits=True adds a loss.*does not know for this model: set it to False"),
    "attentions": (lambda: Case(more={"output_attentions": True, "attn_implementation": "eager"}).config(), "output_attentions=True"),
    "hidden states": (lambda: Case(more={"output_hidden_states": True}).config(), "output_hidden_states=True"),
    "cross attention": (lambda: Case("gpt2", more={"add_cross_attention": True}).config(), "add_cross_attention=True"),
    "classes of sequences": (
        lambda: transformers.LlamaForSequenceClassification(Case().config()), "ostinato does not know the loss of this class, only of ...ForCausalLM",
    ),
    "no head": (lambda: transformers.LlamaModel(Case().config()), "LlamaModel: ostinato does not know the loss of this class"),
    "untried": (lambda: transformers.CohereConfig(**SIZES), '"cohere" was not tried.*untried=True'),
    "no plan": (lambda: transformers.OPTConfig(vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=2), "opt has no pipeline plan"),
    "no folder": (lambda: "nowhere", '"nowhere" is not a folder with a config.json'),
    "no model": (lambda: 7, "takes a transformers model, a configuration or the folder of a checkpoint, but got int"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    source, message = REFUSED[name]
    with pytest.raises(hf.Refused, match=message):
        hf.layers(source())


def test_a_quantized_checkpoint():
    config = Case().config()
    config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(hf.Refused, match="quantized weights"):
        hf.layers(config)


def test_a_head_whose_model_is_elsewhere():
    model = Case().make()
    model.base_model_prefix = "decoder"
    with pytest.raises(hf.Refused, match='LlamaForCausalLM has no attribute "decoder"'):
        hf.layers(model)


def test_weights_shared_by_blocks():
    model = Case().make()
    model.model.layers[1].mlp = model.model.layers[0].mlp
    with pytest.raises(hf.Refused, match=r"model.layers.0.mlp.*and model.layers.1.mlp.* are one tensor"):
        hf.layers(model)


def test_a_part_that_no_plan_names():
    model = Case().make()
    model.model.more = torch.nn.Linear(2, 2)
    with pytest.raises(hf.Refused, match='"model.more.weight" is in no part of its pipeline plan'):
        hf.layers(model)


def test_dropout_that_no_plan_names():
    model = Case().make()
    model.model.drop = torch.nn.Dropout(0.1)
    with pytest.raises(hf.Refused, match='"model.drop" is in no part'):
        hf.layers(model)


@pytest.mark.parametrize("where", ["", "model"])
def test_hooks_around_the_parts(where):
    model = Case().make()
    model.get_submodule(where).register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(
        hf.Refused,
        match="the script has set forward_hooks on .*LlamaForCausalLM, which every layer would run",
    ):
        hf.layers(model)


def test_a_forward_of_the_script_s_own():
    model = Case().make()
    model.model.forward = model.model.forward
    with pytest.raises(hf.Refused, match='has set forward on "model"'):
        hf.layers(model)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_a_parameter(kind):
    model = Case().make()
    handle = getattr(model.model.layers[1].mlp.up_proj.weight, kind)(lambda _: None)
    with pytest.raises(
        hf.Refused,
        match='hooks on "model.layers.1.mlp.up_proj.weight".*on the layers that PipelineModule has',
    ):
        hf.layers(model)
    handle.remove()
    hf.layers(model)


def halve(module):
    forward = module.forward
    module.forward = lambda x: forward(x) / 2


def halve_bound(module):
    forward = module.forward
    module.forward = MethodType(lambda self, x: forward(x) / 2, module)


TIED_HEAD = {
    "forward_hooks": lambda head: head.register_forward_hook(lambda *_: None),
    "forward_pre_hooks": lambda head: head.register_forward_pre_hook(lambda *_: None),
    "forward": halve,
}


@pytest.mark.parametrize("kind", TIED_HEAD)
def test_what_a_tied_head_would_not_run(kind):
    model = Case(tied=True).make()
    TIED_HEAD[kind](model.lm_head)
    with pytest.raises(
        hf.Refused, match=f'has set {kind} on "lm_head".* shares its weight with model.embed_tokens'
    ):
        hf.layers(model)


@pytest.mark.parametrize("change", [halve, halve_bound])
def test_a_forward_that_would_run_the_model_s_modules(change):
    model = Case().make()
    change(model.model.layers[2].mlp)
    with pytest.raises(hf.Refused, match='has set forward on "model.layers.2.mlp".*: set it in change='):
        hf.layers(model)


class PenalisedForCausalLM(transformers.LlamaForCausalLM):
    def forward(self, *args, **more):
        made = super().forward(*args, **more)
        made.loss = None if made.loss is None else 2 * made.loss
        return made


class WeightedForCausalLM(transformers.LlamaForCausalLM):
    @property
    def loss_function(self):
        return lambda *args, **more: 0


class RemoteForCausalLM(transformers.LlamaPreTrainedModel):
    """As trust_remote_code reads them: no class of transformers has its forward."""

    def forward(self, input_ids, labels=None):
        pass


@pytest.mark.parametrize("kind", [PenalisedForCausalLM, WeightedForCausalLM])
def test_a_class_with_its_own_loss(kind):
    what = r"forward\(\)" if kind is PenalisedForCausalLM else "loss_function"
    case = Case(inputs=("input_ids", "attention_mask"))
    for source, more in ((kind(case.config()), {}), (case.config(), {"kind": kind})):
        with pytest.raises(hf.Refused, match=f"{kind.__name__} replaces {what} of LlamaForCausalLM"):
            hf.layers(source, **more)
        run(built(hf.layers(source, case.inputs, untried=True, **more)), batch(case)[0])
    check_class(RemoteForCausalLM, untried=False)


def test_a_head_tied_by_hand_only():
    model = Case().make()
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(
        hf.Refused, match="lm_head shares its weight.*: set model.config.tie_word_embeddings = True"
    ):
        hf.layers(model)
    model.config.tie_word_embeddings = True
    hf.layers(model)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_head_tied_in_the_configuration_only(kind, tmp_path):
    model = Case(kind, tied=True).make()
    model.lm_head.weight = torch.nn.Parameter(2 * model.lm_head.weight.detach())
    model.save_pretrained(tmp_path)
    with pytest.raises(
        hf.Refused, match="lm_head has its own weight.*: set model.config.tie_word_embeddings = False"
    ):
        hf.layers(model)
    with pytest.raises(
        hf.Refused, match='holds lm_head.weight and .*, which differ, .*"tie_word_embeddings": false'
    ):
        hf.layers(tmp_path)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        assert torch.equal(weights(built(hf.layers(source)))["lm_head.weight"], model.lm_head.weight)


def test_a_generation_config_that_could_not_be_saved():
    model = Case().make()
    model.generation_config.temperature = 0.6
    with pytest.raises(hf.Refused, match="(?s)save.. after the training.*set `do_sample=True`"):
        hf.layers(model)
    model.generation_config.do_sample = True
    hf.layers(model)


def test_a_count_of_labels_for_each_sample():
    case = Case()
    model = case.make()
    inputs, labels = batch(case)
    logits = run(built(hf.layers(model)), inputs)
    with pytest.raises(hf.Refused, match="count beside the labels holds 2 numbers.*in collate_fn"):
        hf.loss(model)(logits, (labels, torch.tensor([5.0, 5.0])))


def test_another_head_cannot_be_tied():
    model = Case(tied=True).make()
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(hf.Refused, match="only the embedding and the head may share one"):
        hf.layers(model)


@pytest.mark.parametrize(("inputs", "message"), [
    (("attention_mask",), 'they must include "input_ids"'),
    (("input_ids", "labels"), 'a batch of llama cannot have "labels"'),
    (("input_ids", "mask"), 'a batch of llama cannot have "mask"'),
])  # fmt: skip
def test_inputs(inputs, message):
    with pytest.raises(hf.Refused, match=message):
        hf.layers(Case().config(), inputs)


def test_batches_of_another_form():
    layers = built(hf.layers(Case().make(), ("input_ids", "attention_mask")))
    inputs, _ = batch(Case(inputs=("input_ids", "attention_mask")))
    with pytest.raises(hf.Refused, match="holds 1 input, but layers.* was told 2: input_ids, attention_mask"):
        run(layers, {"input_ids": inputs["input_ids"]})
    with pytest.raises(hf.Refused, match='"attention_mask" is torch.float32: use integers or booleans'):
        run(layers, inputs | {"attention_mask": inputs["attention_mask"].float()})


def test_an_embedding_that_is_tied_and_used_twice():
    case = Case("gpt2", True, inputs=("input_ids", "token_type_ids"))
    with pytest.raises(hf.Refused, match="uses its embedding twice, and the embedding is tied to its head"):
        run(built(hf.layers(case.make(), case.inputs)), batch(case)[0])


def test_a_model_has_its_own_class_and_type():
    with pytest.raises(hf.Refused, match="`kind` and `dtype` are for configurations"):
        hf.layers(Case().make(), dtype=torch.bfloat16)


def test_packed_positions_are_announced(capsys):
    hf.layers(Case().config(), ("input_ids", "position_ids"))
    assert "positions that restart within a row separate sequences" in capsys.readouterr().err
    hf.layers(Case(more={"use_cache": False}).config(), ("input_ids", "position_ids"))
    assert not capsys.readouterr().err


def test_nothing_is_imported_before_it_is_used():
    import subprocess
    import sys

    code = "import sys, ostinato.hf; assert not {'transformers', 'deepspeed', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
