# SPDX-License-Identifier: Apache-2.0
"""What the names of parameters and buffers in a PipelineModule say: "3.weight" is of layer 3,
"tied_modules.embed.weight" of the layers that are tied as "embed", "loss_fn.scale" of the loss."""

import torch


def module_of(tensor: str) -> str:
    """The name under which PipelineModule has registered the tensor's module: "3", "tied_modules.embed"."""
    return ".".join(tensor.split(".")[: 1 + tensor.startswith("tied_modules.")])


def in_layers(tensor: str) -> bool:
    """Whether it belongs to a layer: not to the loss, nor to what the script added to the model itself."""
    return tensor.startswith("tied_modules.") or tensor.partition(".")[0].isdecimal()


def module_name_of(layer: int, spec) -> str | None:
    """The name under which PipelineModule registers a layer; None for a plain function, which has no weights."""
    from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec

    if isinstance(spec, TiedLayerSpec):
        return f"tied_modules.{spec.key}"
    return str(layer) if isinstance(spec, LayerSpec | torch.nn.Module) else None


def layer_of(tensor: str) -> int | None:
    """None for a tensor of a tied module, or of the loss."""
    layer = tensor.partition(".")[0]
    return int(layer) if layer.isdecimal() else None


def tied_key(tensor: str) -> str | None:
    """The key of the tensor's TiedLayerSpecs; None where it is not of a tied module."""
    first, *rest = tensor.split(".")
    return rest[0] if first == "tied_modules" and rest else None
