# SPDX-License-Identifier: Apache-2.0
"""What a model and a run allow in a plan, each with the reason (search/profile/restrictions.h,
docs/profile-format.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

Row = tuple[str, str, int, list[int], int]


@dataclass(frozen=True)
class Restriction:
    rule: Literal[
        "most_chunks", "whole_backwards", "no_shards", "fixed_ends", "together", "one_stage", "spread"
    ]
    reason: str
    chunks: int = 0  # of most_chunks
    layers: tuple[int, ...] = ()  # of together, one_stage and spread; ascending
    device: int = -1  # of together: which; -1: any

    @property
    def row(self) -> Row:
        """As the compiled modules take it."""
        return self.rule, self.reason, self.chunks, list(self.layers), self.device


def of_classes(model: Any, engine: Any) -> list[Restriction]:
    """Restrictions from a PipelineModule and its PipelineEngine, or the engine's class: code that the script runs
    around all layers of a rank, which would run once per stage if a rank has several; and tensor slicing."""
    sliced = [
        Restriction("no_shards", 'its ranks hold slices of layers (the "model" axis of the topology)')
    ] * (model.topology().get_dim("model") > 1)
    kind, what = getattr(model, "own_kind", type(model)), ""
    forward = next(
        run for command, run in engine._INSTRUCTION_MAP.items() if command.__name__ == "ForwardPass"
    )
    if "forward" in vars(model) or not is_deepspeeds(kind.forward):
        what = f"{kind.__name__} has its own forward()"
    elif not is_deepspeeds(forward):
        owner = engine if isinstance(engine, type) else type(engine)
        what = f"{'the script' if is_deepspeeds(owner) else owner.__name__} has its own forward pass"
    if not what:
        return sliced
    what += ", which 1F1B runs once for all layers of a rank"
    return [Restriction("most_chunks", what, chunks=1), Restriction("no_shards", what), *sliced]


def of_experts(layers: Iterable[int], stages: Iterable[int]) -> list[Restriction]:
    """Restrictions from the layers with experts (deepspeed.moe): every rank makes process groups for its experts,
    and the ranks would hang where one has none. `stages`: number of layers of each stage of DeepSpeed's own partition;
    where not even that gives each rank one, there is no restriction."""
    experts = tuple(sorted(layers))
    bounds = list(accumulate(stages, initial=0))
    if not experts or not all(
        any(first <= layer < end for layer in experts) for first, end in pairwise(bounds)
    ):
        return []
    return [Restriction("spread", "every rank needs a layer with experts (deepspeed.moe)", layers=experts)]


def experts_in(module: Any) -> list[Any]:
    """The parts of a torch module for which DeepSpeed makes process groups, in its order."""
    return [part for part in module.modules() if hasattr(part, "set_deepspeed_parallelism")]


def is_deepspeeds(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith(("deepspeed.", "ostinato."))
