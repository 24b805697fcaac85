# SPDX-License-Identifier: Apache-2.0
"""Which module a tied layer runs on where layers have moved.

DeepSpeed builds a tied module once on every rank that has one of its layers, and keeps only the tied weight equal. Whatever else it has,
a bias or a position embedding, is another one on every rank, and learns from that rank's layers alone. So a rank that gets tied layers
gets the whole module of the rank that has them in DeepSpeed's partition:

    source_of(names, before, owners, "tied_modules.embed", target=2)      # the rank of which rank 2 takes its module

Where layers of several ranks come to lie on one, that is the module of the first of them. Where layers of one rank come to lie on several,
each would go on with a copy, and what is not tied would learn apart: refused.
"""

import torch


def source_of(names: list[str | None], before: list[int], owners: list[tuple[int, ...]], unit: str, target: int) -> int:
    """The rank that has built, in DeepSpeed's partition, what `target` is to hold of `unit`. By layer: `names` of units, the rank
    `before`, and `owners`. `target` itself where one of its layers stays.
    """
    sources = [rank for name, rank, ranks in zip(names, before, owners, strict=True) if name == unit and target in ranks]
    return target if target in sources else sources[0]


def beside(spec, module: torch.nn.Module) -> list[str]:
    """Names of the module's parameters that are not tied."""
    attributes = [spec.tied_weight_attr] if isinstance(spec.tied_weight_attr, str) else spec.tied_weight_attr
    tied = {id(_found(module, name)) for name in attributes}
    return [name for name, tensor in module.named_parameters() if id(tensor) not in tied]


def apart_from_its_own(layers: list[int], before: list[int], owners: list[tuple[int, ...]], rank: int) -> str:
    """Why `layers`, which are tied, cannot lie where `owners` says, as far as `rank` has built one module for several of them;
    "" where they can. To be formatted with the `key`, and the `name` of what is not tied.
    """
    mine = [layer for layer in layers if before[layer] == rank]
    if len({owners[layer] for layer in mine}) <= 1:
        return ""
    return (
        f"layers {', '.join(map(str, mine))} are tied (\"{{key}}\"), and DeepSpeed's own partition runs them on one module, of which \"{{name}}\" is not "
        "tied: let the placement keep them on one rank"
    )


def together_now(layers: list[int], before: list[int], owners: list[tuple[int, ...]], name: str) -> list[str]:
    """What is to be said of tied `layers` that DeepSpeed's own partition runs on several modules, and the placement on one. `name`: of what is
    not tied in it.
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


def _found(module: torch.nn.Module, name: str):
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    return getattr(module, last)
