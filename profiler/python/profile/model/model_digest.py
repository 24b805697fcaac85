# SPDX-License-Identifier: Apache-2.0
"""Names a model by what it is made of, so that a plan made for one model is not run with another.

    digest = model_digest([("0:Embedding", [("token.weight", (256, 96), "float32")]), ("1:Head", [...])])

The digest covers, in model order, the name of every layer and the name and shape of each of its parameters.
Values, types (which DeepSpeed casts), what is frozen, buffers and batch sizes are not in it. It is made of
the digests of the layers, so that ranks which hold some layers each can tell it together, and can say which
layers differ.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence

Parameter = tuple[str, Sequence[int], str]  # name, shape, "float32"


def model_digest(layers: Iterable[tuple[str, Iterable[Parameter]]]) -> str:
    """SHA-256 in lower-case hexadecimal over (layer name, [(parameter name, shape, type), ...]) in order."""
    return digest_of_layers(layer_digest(name, parameters) for name, parameters in layers)


def digest_of_layers(digests: Iterable[str]) -> str:
    """model_digest() of layers with these digests, in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def layer_digest(name: str, parameters: Iterable[Parameter]) -> str:
    """SHA-256 in lower-case hexadecimal over the layer's name, and its parameters' names and shapes in order."""
    row = [name, [[what, list(shape)] for what, shape, _ in parameters]]
    return hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).hexdigest()


def layer_name(index: int, layer) -> str:
    """`3:Block`; `3:text` of a layer that ostinato.deepspeed.graph() named. `layer` is a LayerSpec, a module,
    or any callable."""
    if hasattr(layer, "reads"):
        return f"{index}:{layer.name}"
    if isinstance(layer, functools.partial):
        return layer_name(index, layer.func)
    kind = getattr(layer, "typename", None)  # of a LayerSpec
    if kind is None:
        kind = layer if hasattr(layer, "__name__") else type(layer)
    return f"{index}:{kind.__name__}"


def layer_parameters(module) -> list[Parameter]:
    """Name, shape and type of the parameters of a built layer; none for a plain callable."""
    if not hasattr(module, "named_parameters"):
        return []
    return [
        (name, tuple(p.shape), str(p.dtype).removeprefix("torch.")) for name, p in module.named_parameters()
    ]
