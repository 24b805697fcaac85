# SPDX-License-Identifier: Apache-2.0
"""Which module a tied layer runs on where layers have moved.

DeepSpeed builds a tied module once on every rank that has one of its layers, and keeps only the tied weight
equal. Everything else in it (a bias, a position embedding) is separate on every rank, and learns from that
rank's layers alone. So a rank that gets tied layers gets the whole module of the rank that has them in
DeepSpeed's partition:

    source_of(names, before, owners, "tied_modules.embed", target=2)      # the rank from which rank 2 takes its module

Where layers of several ranks move to one, it takes the module of the first of them. Where layers of one rank
move to several, each would train its own copy of what is not tied: no search does that, and a plan that does
is refused (bound_layers). Where two ranks have built different modules for one key (an embedding and a head as two
classes, or Megatron's embeddings, with a norm on the first stage only), their layers stay where they are
(uneven_layers).
"""

from collections.abc import MutableMapping, Sequence
from operator import attrgetter

import torch
from ostinato.groups import everyones
from ostinato.nn.layers import tensors_of
from ostinato.profile.model.shared import in_one_stage, lent_by, of_shared, sharing
from ostinato.restrictions import Restriction
from torch.utils.weak import WeakIdKeyDictionary

from ..save.tensor_names import module_name_of
from ..section.plans import Stage
from ..upstream import stock_parts

Holders = MutableMapping[torch.nn.Parameter, set[int]]  # by parameter, layers; keeps none alive


def source_of(
    names: list[str | None], before: list[int], owners: list[tuple[int, ...]], name: str, target: int
) -> int:
    """The rank that has built, in DeepSpeed's partition, what `target` is to hold of the module. By layer:
    the `names` of modules, the rank `before`, and the new `owners`.
    """
    return next(
        rank
        for held, rank, ranks in zip(names, before, owners, strict=True)
        if held == name and target in ranks
    )


def beside(spec, module: torch.nn.Module) -> list[str]:
    """Names of the module's parameters that are not tied."""
    attributes = [spec.tied_weight_attr] if isinstance(spec.tied_weight_attr, str) else spec.tied_weight_attr
    tied = {id(attrgetter(name)(module)) for name in attributes}
    return [name for name, tensor in module.named_parameters() if id(tensor) not in tied]


def bound_layers(model) -> list[Restriction]:
    """Which of this rank's layers in DeepSpeed's own partition must stay together, or stay on this rank."""
    before, layers_of = owners_of(model), dict[str, list[int]]()
    for layer, (rank, spec) in enumerate(zip(before, model._layer_specs, strict=True)):
        if rank == model.stage_id and (name := module_name_of(layer, spec)) is not None:
            layers_of.setdefault(name, []).append(layer)
    found: list[Restriction] = []
    for name, layers in layers_of.items():
        if "." not in name or len(layers) == 1:
            continue
        spec, module = model._layer_specs[layers[0]], model.get_submodule(name)
        if more := beside(spec, module):
            why = f'tied as "{spec.key}", and DeepSpeed\'s own partition runs them on one module, whose "{more[0]}" is not tied'
            found.append(Restriction("together", why, layers=tuple(layers)))
        if any(True for _ in module.buffers()):
            found += in_one_stage(layers)
    shared = of_shared(model._layer_specs, _held(model), before)
    return found + [one for one in shared if before[one.layers[0]] == model.stage_id]


def _held(model) -> list[Sequence[torch.nn.Parameter]]:
    """By layer, its parameters: of this rank's layers in DeepSpeed's own partition, and of modules that the script has
    made."""
    made = [
        model.get_submodule(name)
        if rank == model.stage_id and (name := module_name_of(layer, spec))
        else spec
        for layer, (rank, spec) in enumerate(zip(owners_of(model), model._layer_specs, strict=True))
    ]
    return [tuple(module.parameters()) if isinstance(module, torch.nn.Module) else () for module in made]


def holders_of(model) -> Holders:
    """Of what this rank knows, before layers move: its layers, and what the script has made. All ranks of the pipeline
    must call it."""
    found, lent, users = WeakIdKeyDictionary(), lent_by(model._layer_specs), set[tuple[str, int]]()
    names = {id(parameter): name for name, parameter in lent.items()}
    for layer, held in enumerate(_held(model)):
        for parameter in held:
            found.setdefault(parameter, set()).add(layer)
            if id(parameter) in names:
                users.add((names[id(parameter)], layer))
    for name, layer in set[tuple[str, int]]().union(*everyones(users, model._grid.pp_proc_group)):
        found.setdefault(lent[name], set()).add(layer)
    return found


def by_layer(holders: Holders, layers: int) -> list[list[torch.nn.Parameter]]:
    """What each of so many layers holds."""
    found: list[list[torch.nn.Parameter]] = [[] for _ in range(layers)]
    for parameter, held in holders.items():
        for layer in held:
            found[layer].append(parameter)
    return found


def uneven_layers(model) -> list[Restriction]:
    """The tied layers of this rank in DeepSpeed's own partition for which another rank has built a different
    module: they stay. All ranks of the pipeline must call it."""
    layers: dict[str, dict[int, list[int]]] = {}  # by the name of a module, and rank
    for layer, (rank, spec) in enumerate(zip(owners_of(model), model._layer_specs, strict=True)):
        if "." in (name := module_name_of(layer, spec) or ""):
            layers.setdefault(name, {}).setdefault(rank, []).append(layer)
    rank = model.stage_id
    here = {name: of_rank for name, of_rank in layers.items() if rank in of_rank}
    mine = {
        name: {(n, tuple(t.shape)) for n, t in tensors_of(model.get_submodule(name)).items()} for name in here
    }
    everyone, found = everyones(mine, model._grid.pp_proc_group), []
    for name, of_rank in here.items():
        for other in of_rank.keys() - {rank}:
            a, b = sorted((of_rank[rank][0], of_rank[other][0]))
            differ = sorted(mine[name] ^ everyone[other][name])
            if not _built_alike(model._layer_specs[a], model._layer_specs[b]):
                what = f"layers {a} and {b} have different classes or arguments, and on one rank would be one module"
            elif differ:
                what = f'its constructor makes different tensors on another rank ("{differ[0][0]}")'
            else:
                continue
            why = f'tied as "{name.removeprefix("tied_modules.")}", but {what}'
            found.append(Restriction("together", why, layers=tuple(of_rank[rank]), device=rank))
    return found


def lent_layers(model) -> list[Restriction]:
    """The layers of this rank in DeepSpeed's own partition that hold a parameter of another rank's layers, because
    their LayerSpecs were given the same module (a model's embedding and its head): they stay, as each rank
    trains its own copy. All ranks of the pipeline must call it."""
    names = {id(parameter): name for name, parameter in lent_by(model._layer_specs).items()}
    rank, layers = model.stage_id, dict[str, list[int]]()
    for layer, (owner, spec) in enumerate(zip(owners_of(model), model._layer_specs, strict=True)):
        if owner == rank and (module_name_of(layer, spec) or "").isdecimal():
            for parameter in model.get_submodule(str(layer)).parameters():
                if id(parameter) in names:
                    layers.setdefault(names[id(parameter)], []).append(layer)
    everyone = everyones(list(layers), model._grid.pp_proc_group)
    elsewhere = {name for other, held in enumerate(everyone) if other != rank for name in held}
    stay = sorted({layer for name in layers.keys() & elsewhere for layer in layers[name]})
    return [sharing(model._layer_specs[layer], [layer], rank) for layer in stay]


def _built_alike(a, b) -> bool:
    """Whether two tied LayerSpecs ask for the same module."""
    try:
        return a.typename is b.typename and bool(
            (a.module_args, a.module_kwargs) == (b.module_args, b.module_kwargs)
        )
    except Exception:  # what cannot be compared may differ: tensors
        return False


def fixed_layers(model) -> list[Restriction]:
    """What this rank's layers do not allow in a placement. All ranks of the pipeline must call it."""
    return bound_layers(model) + uneven_layers(model) + lent_layers(model)


def sums_of(model, stages: Sequence[Stage]) -> tuple[list[str], dict[int, list[str]]]:
    """Keys of tied layers whose gradients are summed in a different order than in DeepSpeed's own partition; and
    by stage, keys of those whose gradients it must add up apart from its rank's, so that the order is the same.
    `stages`: by layer.

    DeepSpeed adds the gradients of a rank's tied layers as they come, and the sums of several ranks at the
    end. A stage adds up what one of DeepSpeed's ranks does if it has the same tied layers. Two sums may then
    be added by one rank, too. More are added only by an all-reduce over the same ranks: it adds each part of
    the tensor in a different order, which depends on them.
    """
    # By key and rank in DeepSpeed's partition: the stage of each layer.
    tied: dict[str, dict[int, list[Stage]]] = {}
    for rank, stage, spec in zip(owners_of(model), stages, model._layer_specs, strict=True):
        if hasattr(spec, "tied_weight_attr"):
            tied.setdefault(spec.key, {}).setdefault(rank, []).append(stage)
    changed, apart = [], dict[int, list[str]]()
    for key, of_ranks in sorted(tied.items()):
        sums = [here[0] for here in of_ranks.values()]
        divided = any(stage is not here[0] for here in of_ranks.values() for stage in here)
        mixed = len({stage.index for stage in sums}) < len(sums)
        if divided or mixed or (len(sums) > 2 and [stage.rank for stage in sums] != list(of_ranks)):
            changed.append(key)
        elif len(sums) == 2 and sums[0].rank == sums[1].rank:
            apart.setdefault(sums[1].index, []).append(key)
    return changed, apart


def owners_of(model) -> list[int]:
    """By layer, its pipeline rank in DeepSpeed's own partition."""
    parts = stock_parts(model)
    return [rank for rank in range(len(parts) - 1) for _ in range(parts[rank], parts[rank + 1])]


def together_now(layers: list[int], before: list[int], owners: list[tuple[int, ...]], name: str) -> list[str]:
    """What to say of tied `layers` that DeepSpeed's own partition runs on several modules, and the placement
    on one. `name`: of a parameter in it that is not tied.
    """
    found = []
    for ranks in sorted({rank for layer in layers for rank in owners[layer]}):
        here = [layer for layer in layers if ranks in owners[layer]]
        if len({before[layer] for layer in here}) > 1:
            found.append(
                f"tied layers {', '.join(map(str, here))} share the module of layer {here[0]}: under 1F1B each of their ranks has its own module, with its own "
                f'"{name}", which is not tied'
            )
    return found
