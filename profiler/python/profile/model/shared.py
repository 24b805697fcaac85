# SPDX-License-Identifier: Apache-2.0
"""Layers that hold the same weights though they are not tied: one object at several places, or given to several
LayerSpecs.

Within one of DeepSpeed's stages such a weight is held and trained once, and each further stage trains its copy. A plan
may change neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from ostinato.profile.model.model_digest import layer_name
from ostinato.restrictions import Restriction

State = tuple[list[nn.Parameter], list[nn.Parameter]]  # what of it is trained, and all of it


def tied_key(layer: Any) -> Any:
    return layer.key if hasattr(layer, "tied_weight_attr") else None


def held_by(layer: Any) -> list[nn.Parameter]:
    """Parameters of a module; of a LayerSpec those that it was given, as no other layer has those that it makes."""
    if isinstance(layer, nn.Module):
        return list(layer.parameters())
    if given := {id(parameter) for parameter in _given_to(layer, set())}:
        # What its constructor draws, the script's next layer would not; whoever needs the layer says why it fails.
        with torch.random.fork_rng([]), suppress(Exception):
            return [parameter for parameter in layer.build().parameters() if id(parameter) in given]
    return []


def lent_by(specs: Sequence[Any]) -> dict[str, nn.Parameter]:
    """The parameters that LayerSpecs were given, by names that are the same on all ranks."""
    seen, names, found = set[int](), set[int](), dict[str, nn.Parameter]()
    for layer, spec in enumerate(specs):
        for number, parameter in enumerate(_given_to(spec, seen)):
            if id(parameter) not in names:
                names.add(id(parameter))
                found[f"{layer}.{number}"] = parameter
    return found


def _given_to(spec: Any, seen: set[int]) -> Iterator[nn.Parameter]:
    """The parameters in the arguments of a LayerSpec: it may hold them, or use them without. Not in what was
    `seen`: each of a thousand specs may be given the whole model."""
    for value in tree_leaves((getattr(spec, "module_args", ()), getattr(spec, "module_kwargs", {}))):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Parameter):
            yield value
        elif isinstance(value, nn.Module):
            yield from value.parameters()
        elif hasattr(type(value), "build"):  # a LayerSpec in another's arguments
            yield from _given_to(value, seen)


def held_again(held: Sequence[Sequence[nn.Parameter]]) -> list[State]:
    """By layer, what an earlier one holds, too."""
    seen: set[int] = set()
    found = []
    for parameters in held:
        again = [parameter for parameter in parameters if _place(parameter) in seen]
        found.append(([parameter for parameter in again if parameter.requires_grad], again))
        seen.update(map(_place, parameters))
    return found


def of_shared(
    layers: Sequence[Any], held: Sequence[Sequence[nn.Parameter]], owners: Sequence[int]
) -> list[Restriction]:
    """By layer: the module or spec, what it holds, and its rank in DeepSpeed's own partition, on which it stays if it
    shares that. Tied layers of one key are one module. Layers that share buffers as well stay in one stage."""
    users: dict[int, dict[int, Any]] = {}  # by place in memory and layer: what is registered once
    for index, (layer, parameters) in enumerate(zip(layers, held, strict=True)):
        for parameter in parameters:
            users.setdefault(_place(parameter), {})[index] = (
                index if (key := tied_key(layer)) is None else key
            )
    found = {
        (tuple(index for index in indices if owners[index] == rank), rank)
        for indices in users.values()
        if len(set(indices.values())) > 1
        for rank in {owners[index] for index in indices}
    }
    buffers = [_buffers_of(layer) for layer in layers] if found else []
    restrictions = []
    for here, rank in sorted(found):
        restrictions.append(sharing(layers[here[0]], here, rank))
        at = [index for index in here if any(buffers[index] & buffers[one] for one in here if one != index)]
        restrictions += in_one_stage(at)
    return restrictions


def in_one_stage(layers: Sequence[int]) -> list[Restriction]:
    """Of `layers` with the same buffers: in several stages, their forwards would take turns in a different order, and
    leave different values in a buffer that they write to (BatchNorm's statistics)."""
    if len(layers) < 2:
        return []
    why = f"layers {layers[0]} and {layers[-1]} share buffers, which depend on the order of their forwards"
    return [Restriction("one_stage", why, layers=tuple(range(layers[0], layers[-1] + 1)))]


def _buffers_of(layer: Any) -> set[int]:
    """Of a module, or of those that a LayerSpec was given."""
    given = (layer, getattr(layer, "module_args", ()), getattr(layer, "module_kwargs", {}))
    modules = [value for value in tree_leaves(given) if isinstance(value, nn.Module)]
    return {id(buffer) for module in modules for buffer in module.buffers()}


def sharing(layer: Any, layers: Sequence[int], rank: int) -> Restriction:
    """Of `layers` that stay on the rank; `layer`: the first of them."""
    kind = layer_name(0, layer).partition(":")[2]
    why = (
        f'they share tensors ("{kind}"): an object that several layers use is one set of weights on one rank, but a set '
        "on each of several ranks; use TiedLayerSpec for layers that share weights"
    )
    return Restriction("together", why, layers=tuple(layers), device=rank)


def _place(parameter: nn.Parameter) -> int:
    """Its address, as two parameters may lie in one memory; what has none is itself."""
    return id(parameter) if is_lazy(parameter) else parameter.data_ptr() or id(parameter)
