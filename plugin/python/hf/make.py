# SPDX-License-Identifier: Apache-2.0
"""From a model to LayerSpecs."""

import os

from ostinato.errors import put

from .losses import Loss
from .refusals import check_class, check_inputs, check_tried, parameters_of
from .sources import Source, source_of


def make_layers(given, inputs, change, kind, dtype, untried: bool) -> list:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    from .parts import Block, Front, Logits, Tail, Words, as_head
    from .saving import check_configurations

    source = source_of(given, kind, dtype, untried)
    source.change = change
    check_tried(source.config, untried)
    check_class(source.kind, untried)
    main = source.kind.main_input_name
    inputs = (main,) if inputs is None else (inputs,) if isinstance(inputs, str) else tuple(inputs)
    check_inputs(inputs, source.config.model_type, main, parameters_of(source.kind))
    source.find_tied()
    if source.wrapped is None:  # else save() writes adapters only
        check_configurations(source)
    _say(source, inputs)
    blocks = [LayerSpec(Block, source, inputs, index) for index in range(source.outline.count)]
    chain = [LayerSpec(Front, source, inputs), *blocks, LayerSpec(Tail, source, inputs)]
    if not source.outline.words:
        return chain
    if _frozen(Words, source, inputs):
        return [LayerSpec(Words, source, inputs), *chain, LayerSpec(Logits, source, inputs)]
    tied = ["embed.weight", "bias"] if source.outline.bias else ["embed.weight"]
    first = TiedLayerSpec("words", Words, source, inputs, tied_weight_attr=tied)
    return [
        first,
        *chain,
        TiedLayerSpec("words", Words, source, inputs, forward_fn=as_head, tied_weight_attr=tied),
    ]


def _frozen(kind, source: Source, inputs: tuple[str, ...]) -> bool:
    """Whether the tied weight is frozen: if `change` may freeze it, builds one to see."""
    import torch

    if source.change is None and not source.in_memory:
        return False
    with torch.random.fork_rng():
        return not kind(source, inputs).embed.weight.requires_grad


def make_loss(given, kind) -> Loss:
    source = source_of(given, kind, untried=True)
    return Loss(source.kind, source.config, source.loss)


def _say(source: Source, inputs: tuple[str, ...]) -> None:
    """Says what differs from a plain call of the model."""
    if (
        "position_ids" in inputs
        and getattr(source.config, "use_cache", False)
        and os.environ.get("RANK", "0") == "0"
    ):
        put(
            f"ostinato: {source}: positions that restart within a row separate sequences, as with use_cache=False, which a "
            "pipeline trains with",
            error=True,
        )
