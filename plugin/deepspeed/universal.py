"""Universal checkpoints (ds_to_universal, "load_universal") where several pipeline ranks hold a layer.

They hold each parameter whole, by name. A rank whose layer is a copy (two directions) reads what it names, like any other;
one that holds a part reads the whole and cuts it. What is saved to be converted names each parameter once: a copy under its first
holder. The converter has no place for parts, so a checkpoint that holds some tells it to refuse, with the layers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from ostinato.nn import Shard


@dataclass(frozen=True)
class Part:
    """A parameter of which this rank holds a part. `whole`: the sizes of all parts together."""

    parameter: torch.nn.Parameter
    shard: Shard
    dimension: int
    whole: tuple[int, ...]


def prepare(engine, parts: list[Part], sharded: list[int], others_name: Callable[[str], bool]) -> None:
    """Once the engine's optimizer is there. `sharded`: the layers of which any rank holds a part; `others_name`: whether another
    rank names the parameter of that name.
    """
    mappings = getattr(engine.optimizer, "_param_slice_mappings", None)
    if mappings is None:
        return  # the state of this optimizer is not saved for conversion
    for part in parts:
        part.parameter.load_hp_checkpoint_state = _cutting(part, part.parameter.load_hp_checkpoint_state)
    for of_group in mappings:
        for name in [name for name in of_group if others_name(name)]:
            del of_group[name]
    if sharded:
        _refuse_conversion(engine.module, sharded)


def _refuse_conversion(model, layers: list[int]) -> None:
    """By DeepSpeed's own list of what cannot be converted, which every rank saves."""
    from deepspeed.checkpoint import constants

    said = dict(getattr(model, constants.UNIVERSAL_CHECKPOINT_INFO, {}))
    said.setdefault(constants.UNIVERSAL_CHECKPOINT_VERSION_KEY, constants.UNIVERSAL_CHECKPOINT_VERSION_VALUE)
    reasons = {f"layer {layer}": "ostinato has sharded it over pipeline ranks" for layer in layers}
    said[constants.AUTOTP_UNSUPPORTED_PARAMETER_PATTERNS] = reasons
    setattr(model, constants.UNIVERSAL_CHECKPOINT_INFO, said)


def _cutting(part: Part, load: Callable) -> Callable:
    """DeepSpeed's loader of one parameter, told how the parameter is cut, as it knows it of tensor parallelism."""
    from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META

    size = part.whole[part.dimension]
    bounds = [part.shard.of(index).bounds(size) for index in range(part.shard.count)]
    sizes = [end - begin for begin, end in bounds]
    meta = {"partition_dim": part.dimension, "logical_shape": part.whole, "partition_sizes": sizes}

    def cutting(folder, _rank, _ranks, **others):
        setattr(part.parameter, DS_AUTOTP_UC_META, meta)  # for the call only: it also changes how a model is saved
        try:
            return load(folder, part.shard.index, part.shard.count, **others)
        finally:
            delattr(part.parameter, DS_AUTOTP_UC_META)

    return cutting
