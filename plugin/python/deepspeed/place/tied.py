# SPDX-License-Identifier: Apache-2.0
"""Which module a tied layer runs on where layers have moved.

DeepSpeed builds a tied module once on every rank that has one of its layers, and keeps only the tied weight
equal. Whatever else it has, a bias or a position embedding, is another one on every rank, and learns from
that rank's layers alone. So a rank that gets tied layers gets the whole module of the rank that has them in
DeepSpeed's partition:

    source_of(names, before, owners, "tied_modules.embed", target=2)      # the rank of which rank 2 takes its module

Where layers of several ranks come to lie on one, that is the module of the first of them. Where layers of one
rank come to lie on several, each would go on with a copy, and what is not tied would learn apart: no search
does that, and a plan that does is refused (bound_layers). A constructor may also build another module on
another rank (Megatron's embeddings with a norm on the first stage): its layers stay (uneven_layers).
"""

from operator import attrgetter

import torch
from ostinato.groups import everyones
from ostinato.restrictions import Restriction

from .holdings import tensors_of


def source_of(
    names: list[str | None], before: list[int], owners: list[tuple[int, ...]], unit: str, target: int
) -> int:
    """The rank that has built, in DeepSpeed's partition, what `target` is to hold of `unit`. By layer:
    `names` of units, the rank `before`, and `owners`.
    """
    return next(
        rank
        for name, rank, ranks in zip(names, before, owners, strict=True)
        if name == unit and target in ranks
    )


def beside(spec, module: torch.nn.Module) -> list[str]:
    """Names of the module's parameters that are not tied."""
    attributes = [spec.tied_weight_attr] if isinstance(spec.tied_weight_attr, str) else spec.tied_weight_attr
    tied = {id(attrgetter(name)(module)) for name in attributes}
    return [name for name, tensor in module.named_parameters() if id(tensor) not in tied]


def bound_layers(model) -> list[Restriction]:
    """Of this rank's layers in DeepSpeed's own partition, those that must stay on one rank, or on this one."""
    units: dict[str, list[int]] = {}
    before = owners_of(model)
    users: dict[int, list[int]] = {}  # by id of a parameter of a module that the script has built: layers
    for layer, (rank, spec) in enumerate(zip(before, model._layer_specs, strict=True)):
        for parameter in spec.parameters() if isinstance(spec, torch.nn.Module) else ():
            users.setdefault(id(parameter), []).append(layer)
        if rank == model.stage_id and (unit := unit_of(layer, spec)) is not None:
            units.setdefault(unit, []).append(layer)
    found: list[Restriction] = []
    holder: dict[int, str] = {}  # unit, by the address of a tensor
    for unit, layers in units.items():
        spec, module = model._layer_specs[layers[0]], model.get_submodule(unit)
        if "." in unit and len(layers) > 1 and (more := beside(spec, module)):
            why = f'tied as "{spec.key}", and DeepSpeed\'s own partition runs them on one module, of which "{more[0]}" is not tied'
            found.append(Restriction("together", why, layers=tuple(layers)))
        others = {
            holder.setdefault(t.data_ptr(), unit) for _, t in tensors_of(module) if t.numel() and t.data_ptr()
        } - {unit}
        found += [_sharing(module, sorted(units[other] + layers), model.stage_id) for other in others]
        far = {
            layer
            for p in module.parameters()
            for layer in users.get(id(p), ())
            if before[layer] != model.stage_id
        }
        if far and not others:  # this rank's copy of what another rank has as well: they would become one
            found.append(_sharing(module, layers, model.stage_id))
    return found


def uneven_layers(model) -> list[Restriction]:
    """Of this rank's tied layers in DeepSpeed's own partition, those of which another rank has built other
    tensors: a constructor that asks for its rank, so they stay. All ranks of the pipeline must call it."""
    layers: dict[str, list[int]] = {}
    for layer, (rank, spec) in enumerate(zip(owners_of(model), model._layer_specs, strict=True)):
        if rank == model.stage_id and "." in (unit := unit_of(layer, spec) or ""):
            layers.setdefault(unit, []).append(layer)
    mine = {
        unit: {(name, tuple(t.shape)) for name, t in tensors_of(model.get_submodule(unit))} for unit in layers
    }
    found = []
    for theirs in everyones(mine, model._grid.pp_proc_group):
        for unit in mine.keys() & theirs.keys():
            if differ := sorted(mine[unit] ^ theirs[unit]):
                key = unit.removeprefix("tied_modules.")
                why = f'tied as "{key}", of which the constructor makes other tensors on another rank ("{differ[0][0]}")'
                found.append(Restriction("together", why, layers=tuple(layers[unit]), device=model.stage_id))
    return found


def _sharing(module: torch.nn.Module, layers: list[int], rank: int) -> Restriction:
    why = (
        f'they share tensors ("{type(module).__name__}"): one object at several places of the model, or a parameter of two layers, has one '
        "set of weights on one rank and several on several; use TiedLayerSpec for layers that share weights"
    )
    return Restriction("together", why, layers=tuple(layers), device=rank)


def owners_of(model) -> list[int]:
    """By layer, its pipeline rank in DeepSpeed's own partition."""
    parts = model.partitions()
    return [rank for rank in range(len(parts) - 1) for _ in range(parts[rank], parts[rank + 1])]


def unit_of(layer: int, spec) -> str | None:
    """None for a plain function, which has no weights."""
    from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec

    if isinstance(spec, TiedLayerSpec):
        return f"tied_modules.{spec.key}"
    return str(layer) if isinstance(spec, LayerSpec | torch.nn.Module) else None


def together_now(layers: list[int], before: list[int], owners: list[tuple[int, ...]], name: str) -> list[str]:
    """What is to be said of tied `layers` that DeepSpeed's own partition runs on several modules, and the
    placement on one. `name`: of what is not tied in it.
    """
    found = []
    for ranks in sorted({rank for layer in layers for rank in owners[layer]}):
        here = [layer for layer in layers if ranks in owners[layer]]
        if len({before[layer] for layer in here}) > 1:
            found.append(
                f"tied layers {', '.join(map(str, here))} run on one module, that of layer {here[0]}: in 1F1B each of their ranks has one, and what is not tied in "
                f'it ("{name}") is that rank\'s'
            )
    return found
