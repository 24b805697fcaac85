# SPDX-License-Identifier: Apache-2.0
"""What of a configuration cannot be had in a pipeline with the model's own numbers, each refused by its name."""

from .errors import Refused
from .routers import check_routers, wanted

# Trained here against the model itself (tests/python/hf). Others run with layers(..., untried=True).
TRIED = (
    "bert", "gemma", "gemma2", "gpt2", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "vit",
)  # fmt: skip
LOSSES = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForImageClassification")
T5 = (
    "the blocks of its decoder all read the encoder's output, and each block hands on a learnt bias of relative positions beside the hidden "
    "state: that is no chain, and graph() takes one tensor from each layer"
)


def check_shape(config) -> None:
    if config.is_encoder_decoder:
        raise Refused(f"{config.model_type} cannot be made a list of layers: {T5}")


def check_config(config, kind: type) -> None:
    """Raises Refused for the first."""
    name = kind.__name__
    if not name.endswith(LOSSES):
        raise Refused(
            f"{name}: the loss of this class is not known here; {', '.join('...' + end for end in LOSSES)} are"
        )
    if wanted(config):
        check_routers(kind)
    for key in ("output_attentions", "output_hidden_states"):
        if getattr(config, key, False):
            raise Refused(f"{name}: {key}=True asks for what layers on other ranks have: set it to False")
    if getattr(config, "add_cross_attention", False):
        raise Refused(
            f"{name}: add_cross_attention=True reads another model's output in every block, which is not sent: set it to False"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise Refused(f"{name}: quantized weights (quantization_config) are not read layer by layer")


def check_tried(config, untried: bool) -> None:
    if config.model_type not in TRIED and not untried:
        raise Refused(
            f'"{config.model_type}" was not tried: compare its losses with the model\'s own once, then call layers(..., untried=True). Tried are '
            f"{', '.join(TRIED)}"
        )


def check_inputs(inputs: tuple[str, ...], model_type: str, main: str, parameters) -> None:
    """`parameters`: of the model's forward."""
    if main not in inputs:
        raise Refused(f'inputs={inputs}: "{main}" must be one of them')
    for name in inputs:
        if name not in parameters or name in (
            "labels",
            "inputs_embeds",
            "past_key_values",
            "use_cache",
            "logits_to_keep",
            "return_dict",
        ):
            raise Refused(f'inputs={inputs}: "{name}" is not what a batch of {model_type} can hold here')
