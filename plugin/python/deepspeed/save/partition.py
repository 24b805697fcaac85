# SPDX-License-Identifier: Apache-2.0
"""How DeepSpeed would cut a model into any number of stages: saved with a checkpoint, for uses of the checkpoint
without the model.

    note(model, "parameters")       # right after a PipelineModule is made: the weight of each of this rank's layers
    facts = facts_of(model)         # all ranks of a pipeline; for ostinato.json
    parts(facts, 3)                 # [0, 4, 7, 12]; None where the model has its own way to cut itself
"""

from typing import Any

import torch
from deepspeed.runtime import utils
from ostinato.groups import everyones

from ..upstream import Model, stock_parts
from .tensor_names import in_layers, module_name_of, module_of

KEY, FACTS = "_ostinato_weights", "_ostinato_facts"


def note(model: Model, method: str) -> None:
    """Counts trainable parameters now, as DeepSpeed does when it builds a layer: scripts freeze some later."""
    bounds = stock_parts(model)
    mine = range(*bounds[model.stage_id : model.stage_id + 2])
    vars(model)[KEY] = method.lower(), {layer: _learning(_module(model, layer)) for layer in mine}


def _module(model: Model, layer: int) -> Any:
    spec = model._layer_specs[layer]
    return (
        model.tied_modules[spec.key]
        if hasattr(spec, "tied_weight_attr")
        else getattr(model, str(layer), None)
    )


def _learning(module: Any) -> int:
    return (
        sum(p.numel() for p in module.parameters() if p.requires_grad)
        if isinstance(module, torch.nn.Module)
        else 0
    )


def facts_of(model: Model) -> dict[str, Any]:
    """`bounds` of its partition, and the `weights` that it balances, [] where it counts layers; `files`:
    layers that have a file; `tied`: layers by key, the one with the file first. All ranks of the pipeline must
    call it.
    """
    if FACTS not in vars(model):
        vars(model)[FACTS] = _facts(model)
    return vars(model)[FACTS]


def _facts(model: Model) -> dict[str, Any]:
    method, counted = vars(model).get(KEY, ("", {}))
    everyone = {
        layer: count
        for of_rank in everyones(counted, model._grid.pp_proc_group)
        for layer, count in of_rank.items()
    }
    layers, bounds, weights = model._num_layers, [int(bound) for bound in stock_parts(model)], None
    if method == "parameters":
        weights = [everyone.get(layer, 0) for layer in range(layers)]
    elif method.startswith("type:"):
        found = set(model._find_layer_type(method.split(":")[1]))
        weights = [int(layer in found) for layer in range(layers)]
    elif method == "uniform":
        weights = []
    if weights is not None and _cut(weights, layers, len(bounds) - 1) != bounds:
        weights = None  # a model that cuts itself
    tied: dict[str, list[int]] = {}
    files = []
    for layer, spec in enumerate(model._layer_specs):
        owner = getattr(spec, "forward_fn", None) is None
        if hasattr(spec, "tied_weight_attr"):
            tied.setdefault(spec.key, []).insert(0 if owner else len(tied[spec.key]), layer)
        if owner and issubclass(getattr(spec, "typename", type(spec)), torch.nn.Module):
            files.append(layer)
    return {"bounds": bounds, "weights": weights, "files": files, "tied": tied}


def parts(facts: dict[str, Any], stages: int) -> list[int] | None:
    """The bounds of `stages` stages."""
    if stages == len(facts["bounds"]) - 1:
        return facts["bounds"]
    return None if facts["weights"] is None else _cut(facts["weights"], facts["bounds"][-1], stages)


def _cut(weights: list[int], layers: int, stages: int) -> list[int]:
    made = utils.partition_balanced(weights, stages) if weights else utils.partition_uniform(layers, stages)
    return [int(bound) for bound in made]


def stock_names(model: Model, stock_modules: list[list[str]], skip: str) -> list[list[str]]:
    """By pipeline rank, the names of the parameters that it would hold in DeepSpeed's partition, in
    DeepSpeed's order: the model's own, "loss_fn", tied modules, layers, then modules that the script added.
    `stock_modules`: as in place.rebuild's Rebuilt; `skip`: a parameter that belongs to no layer. All ranks of the
    pipeline must call it.
    """
    names = [name for name, _ in model.named_parameters() if name != skip]
    everyone = everyones(names, model._grid.pp_proc_group)
    of_module: dict[str, list[str]] = {}
    for name in (name for of_rank in everyone for name in of_rank):
        held = of_module.setdefault(module_of(name), [])
        if name not in held:
            held.append(name)
    # Tied modules were registered first.
    ordered = [sorted(held, key=lambda module: "." not in module) for held in stock_modules]
    outside = [module for module in of_module if not in_layers(module)]
    own = [module for module in outside if module in of_module[module]]
    added = [module for module in outside if module not in (*own, "loss_fn")]
    return [
        [
            name
            for module in (*own, "loss_fn", *held, *added)
            for name in of_module.get(module, ())
            if in_layers(module) or rank >= len(everyone) or name in everyone[rank]
        ]
        for rank, held in enumerate(ordered)
    ]


def modules_of(model: Model, layers: list[int]) -> list[str]:
    """The names of the modules of a rank with these layers."""
    names = (module_name_of(layer, model._layer_specs[layer]) for layer in layers)
    return list(dict.fromkeys(name for name in names if name is not None))
