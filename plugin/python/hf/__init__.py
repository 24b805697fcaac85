# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers as layers of DeepSpeed's PipelineModule, which compute the same values as
the model itself.

    import ostinato.hf as hf

    config = AutoConfig.from_pretrained("folder")                        # or a model, or the folder of a checkpoint
    model = PipelineModule(hf.layers("folder", inputs=("input_ids", "attention_mask")), num_stages=4, loss_fn=hf.loss("folder"))
    engine, *_ = deepspeed.initialize(model=model, config="ds_config.json", model_parameters=model.parameters())
    engine.train_batch(batches)                                          # each ((input_ids, attention_mask), labels)
    hf.save(engine, "trained")                                           # for from_pretrained()

It imports nothing until a function is called: transformers and DeepSpeed may be missing.
"""

from .errors import Refused

__all__ = ["Refused", "layers", "loss", "save"]


def layers(source, inputs=None, *, change=None, kind=None, dtype=None, untried=False) -> list:
    """LayerSpecs of a model: a transformers model in memory (also within peft's PeftModel), a configuration, or
    the folder of a checkpoint.

    `inputs`: what a batch holds besides labels, in order, by the names of the model's forward; default
    `("input_ids",)`, or `("pixel_values",)` for an image model. All but images must be integers or booleans.
    `change`: called with a layer's part of the model when the layer is built, and may freeze parts or add
    adapters in place; the rest of the model is not there. `kind`: the class, if a configuration does not name
    it. `dtype`: of the weights; default as in the checkpoint. `untried`: also take models that were not compared
    with their own losses, and a script's classes with another `forward`. Raises Refused for models that would
    train differently.
    """
    from .make import make_layers

    return make_layers(source, inputs, change, kind, dtype, untried)


def loss(source, kind=None):
    """The loss of the same model, for PipelineModule's `loss_fn`: losses.Loss. Reads no weights."""
    from .make import make_loss

    return make_loss(source, kind)


def save(engine, folder, learned=False) -> None:
    """Writes the weights of an engine, or of its PipelineModule, as a checkpoint that from_pretrained()
    reads.

    Every rank must call it and write to the same folder. `learned`: only trainable parameters (adapters), by the
    model's own names, to learned.safetensors; for a PeftModel like its save_pretrained(). Raises Refused, on
    every rank, where the layers hold tensors that the model does not have, without `learned`. Save the tokenizer
    separately.
    """
    from .saving import save_learned, save_model

    (save_learned if learned else save_model)(engine, folder)
