# SPDX-License-Identifier: Apache-2.0
"""Tensors that layers use and PipelineModule knows nothing of: of a module that a function closes over, in a list that hides it, in a global.

    held = held_by(specs, 5)                        # {words: tensor}
    values_of(specs)                                # by layer, a digest of the numbers of such: to compare between ranks
    apart(specs, before, owners, stages)            # why layers that use each other's weights so cannot lie there; "" where they can

Each rank has made its own, with its own random numbers, and nothing trains them, except where they are the weights of a layer on that rank.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from .packing import words_of
from .script_state import Search


class _Held(Search):
    """What others would look at in place (script_state) is followed for its tensors alone."""

    def __init__(self) -> None:
        super().__init__({}, None)
        self.found: dict[int, tuple[str, torch.Tensor]] = {}
        self._described = False  # what is looked at is an attribute of the layer, which travels (layer_state) if it is plain

    def _hidden(self, module: torch.nn.Module, words: str) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            self.found.setdefault(id(tensor), (words, tensor))

    def _container(self, value: Any, words: str) -> None:
        if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
            self._tensor(torch.from_numpy(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)), words)
        Search._container(self, value, words)

    def _module(self, layer: torch.nn.Module) -> None:
        self._described = True
        Search._module(self, layer)
        self._described = False

    def _tensor(self, tensor: torch.Tensor, words: str) -> None:
        if not self._described or isinstance(tensor, torch.nn.Parameter):
            self.found.setdefault(id(tensor), (words, tensor))

    def _note(self, key: tuple, place: Any) -> None:
        pass


def held_by(specs: Sequence[Any], layer: int) -> dict[str, torch.Tensor]:
    search, spec = _Held(), specs[layer]
    if hasattr(spec, "module_args"):  # a LayerSpec: its arguments make attributes
        search.look(spec.typename, "")
        search.look(getattr(spec, "forward_fn", None), "")
    elif isinstance(spec, torch.nn.Module):
        search.layer(spec)
    else:
        search.look(spec, words_of(spec))
    own = set(map(id, _tensors(spec)))
    return {f"{words}, {number}": tensor for number, (words, tensor) in enumerate(search.found.values()) if id(tensor) not in own}


def values_of(specs: Sequence[Any]) -> dict[int, tuple[str, str]]:
    """(digest, what it is in words), of layers that hold some."""
    found = {layer: held for layer in range(len(specs)) if (held := held_by(specs, layer))}
    return {layer: (_digest(held), _words(held)) for layer, held in found.items()}


def values_of_loss(loss: Any) -> tuple[str, str]:
    """(digest, what it is in words) of what a loss_fn uses and PipelineModule knows nothing of."""
    held = held_by([loss], 0)
    return _digest(held), _words(held)


def differing(values: Sequence[dict[int, tuple[str, str]]], before: Sequence[int], owners: Sequence[tuple[int, ...]], ranks: Sequence[int]) -> str:
    """`values`: by pipeline rank; `before`, `owners`: by layer. What to say of the first layer that would use other numbers; "" for none."""
    for layer, (had, has) in enumerate(zip(before, owners, strict=True)):
        mine = values[had].get(layer, ("", ""))
        for rank in has:
            other = values[rank].get(layer, ("", ""))
            if other[0] != mine[0]:
                return (
                    f"layer {layer} moves from rank {ranks[had]} to rank {ranks[rank]}, and tensors that it uses and that are no layer's ({mine[1] or other[1]}) have "
                    "other numbers there: make them part of the layer, or the same on every rank (a seed)"
                )
    return ""


def apart(specs: Sequence[Any], before: Sequence[int], owners: Sequence[tuple[int, ...]], stages: Sequence[set[int]]) -> str:
    """`before`, `owners`, `stages`: by layer."""
    makers = {id(tensor): layer for layer, spec in enumerate(specs) for tensor in _tensors(spec)}
    for layer in range(len(specs)):
        for words, tensor in held_by(specs, layer).items():
            other = makers.get(id(tensor), layer)
            if other == layer:
                continue
            if stages[layer] != stages[other] if before[layer] == before[other] else set(owners[layer]) & set(owners[other]):
                return (
                    f"layer {layer} uses the weights of layer {other} without TiedLayerSpec ({words.rpartition(',')[0]}): these are one and the same where both layers "
                    "are on a rank, and else not, and the placement changes that; use TiedLayerSpec, or keep both layers in one stage"
                )
    return ""


def _tensors(spec: Any) -> list[torch.Tensor]:
    return [*spec.parameters(), *spec.buffers()] if isinstance(spec, torch.nn.Module) else []


def _words(held: dict[str, torch.Tensor]) -> str:
    return ", ".join(dict.fromkeys(words.rpartition(",")[0] for words in held))


def _digest(held: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in held.values():
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        if tensor.layout is torch.strided and not tensor.is_meta and tensor.numel():
            found.update(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
