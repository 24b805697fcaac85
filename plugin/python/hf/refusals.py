# SPDX-License-Identifier: Apache-2.0
"""Refuses, by name, parts of a configuration with which a pipeline could not compute what the model computes."""

import inspect

from torch import nn

from .errors import Refused
from .routers import check_routers, wanted

# Compared in training with the model itself (tests/python/hf). Other models run with layers(..., untried=True).
TRIED = (
    "bert", "gemma", "gemma2", "gpt2", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "vit",
)  # fmt: skip
LOSSES = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForImageClassification")
T5 = (
    "all blocks of its decoder read the encoder's output, and each block passes on a learnt relative position bias beside the hidden "
    "state: that is not a chain, and graph() takes only one tensor from each layer"
)


def check_shape(config) -> None:
    if config.is_encoder_decoder:
        raise Refused(f"{config.model_type} cannot be turned into a list of layers: {T5}")


def check_config(config, kind: type) -> None:
    """Raises Refused for the first such key."""
    name = kind.__name__
    if not name.endswith(LOSSES):
        raise Refused(
            f"{name}: ostinato does not know the loss of this class, only of {', '.join('...' + end for end in LOSSES)}"
        )
    if wanted(config):
        check_routers(kind)
    for key in ("output_attentions", "output_hidden_states"):
        if getattr(config, key, False):
            raise Refused(f"{name}: {key}=True needs outputs of layers on other ranks: set it to False")
    if getattr(config, "add_cross_attention", False):
        raise Refused(
            f"{name}: add_cross_attention=True reads another model's output in every block, which a pipeline does not send: set it to False"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise Refused(f"{name}: quantized weights (quantization_config) cannot be read layer by layer")


def check_tried(config, untried: bool) -> None:
    if config.model_type not in TRIED and not untried:
        raise Refused(
            f'"{config.model_type}" was not tried: compare its losses once with the model\'s own, then call layers(..., untried=True). Tried: '
            f"{', '.join(TRIED)}"
        )


def check_class(kind, untried: bool) -> None:
    """Raises Refused for a script's class with its own loss, which hf.loss() would not compute."""
    base = transformers_class(kind)
    if untried or kind is base:
        return
    if base.forward is not nn.Module.forward and kind.forward is not base.forward:
        raise Refused(
            f"{kind.__name__} replaces forward() of {base.__name__}, but layers get no labels, so what it does with the loss would be missing: "
            "do that in PipelineModule's loss_fn, compare the losses once with the model's own, then call layers(..., untried=True)"
        )
    if kind.loss_function is not base.loss_function:
        raise Refused(
            f"{kind.__name__} replaces loss_function of {base.__name__}, which hf.loss() would not call: remove it from the class, and set "
            "model.loss_function = ... to that function; or give it to PipelineModule as loss_fn and call layers(..., untried=True)"
        )


def transformers_class(kind):
    """The class of transformers that a model's class is, or derives from."""
    from transformers import PreTrainedModel

    return next(
        base
        for base in kind.__mro__
        if issubclass(base, PreTrainedModel) and base.__module__.startswith("transformers.")
    )


def parameters_of(kind) -> dict[str, inspect.Parameter]:
    """What the model's forward can be called with."""
    made = dict(inspect.signature(kind.forward).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in made.values()):
        made |= inspect.signature(transformers_class(kind).forward).parameters
    return made


def check_inputs(inputs: tuple[str, ...], model_type: str, main: str, parameters) -> None:
    """`parameters`: of the model's forward."""
    if main not in inputs:
        raise Refused(f'inputs={inputs}: they must include "{main}"')
    for name in inputs:
        if name not in parameters or name in (
            "labels",
            "inputs_embeds",
            "past_key_values",
            "use_cache",
            "logits_to_keep",
            "return_dict",
        ):
            raise Refused(f'inputs={inputs}: a batch of {model_type} cannot have "{name}" here')
