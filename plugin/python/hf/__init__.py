# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers as layers of DeepSpeed's PipelineModule, with the model's own
numbers.

    import ostinato.hf as hf

    config = AutoConfig.from_pretrained("folder")                        # or a model, or the folder of a checkpoint
    model = PipelineModule(hf.layers("folder", inputs=("input_ids", "attention_mask")), num_stages=4, loss_fn=hf.loss("folder"))
    engine, *_ = deepspeed.initialize(model=model, config="ds_config.json", model_parameters=model.parameters())
    engine.train_batch(batches)                                          # of ((input_ids, attention_mask), labels)
    hf.save(engine, "trained")                                           # which from_pretrained() reads

Nothing is imported until a function is called: transformers and DeepSpeed need not be there.
"""

from .errors import Refused

__all__ = ["Refused", "layers", "loss", "save"]


def layers(source, inputs=None, *, change=None, kind=None, dtype=None, untried=False) -> list:
    """LayerSpecs of a model: a transformers model in memory, also within peft's PeftModel, a configuration,
    or the folder of a checkpoint.

    `inputs`: what a batch holds beside labels, in order, by the names of the model's forward:
    `("input_ids",)` unless you say otherwise (`("pixel_values",)` of a model of pictures). Integers and
    booleans, pictures apart. `change`: is given what a layer has of the model when that layer is built, and
    may freeze parts or put adapters in, in place; the rest of the model is not there. `kind`: the class,
    where a configuration does not name it. `dtype`: of the weights, unless as the checkpoint has them.
    `untried`: for models that were not compared with their own losses. Raises Refused for what would train to
    other numbers.
    """
    from .make import make_layers

    return make_layers(source, inputs, change, kind, dtype, untried)


def loss(source, kind=None):
    """The loss of the same model, for PipelineModule's `loss_fn`: losses.Loss. No weights are read."""
    from .make import make_loss

    return make_loss(source, kind)


def save(engine, folder, learned=False) -> None:
    """Writes the weights of an engine, or of its PipelineModule, as a checkpoint that from_pretrained()
    reads.

    Every rank must call it and write to the same folder. `learned`: only what learns (adapters), by the
    model's own names, into learned.safetensors; of a PeftModel as its save_pretrained(). Raises Refused, on
    every rank, where the layers hold other tensors than the model has and `learned` is not asked for. A
    tokenizer is not the model's: save it beside.
    """
    from .saving import save_learned, save_model

    (save_learned if learned else save_model)(engine, folder)
