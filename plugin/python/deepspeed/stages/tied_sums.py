# SPDX-License-Identifier: Apache-2.0
"""Gradients of tied layers that a plan has put on one rank, added as DeepSpeed adds them on two.

DeepSpeed's own partition has, say, the embedding on the first rank and the head on the last. Each rank adds up
the gradients of its use over all micro-batches, and an all-reduce at the end of the step adds the two sums. On
one rank both uses share a parameter, whose gradient would add up interleaved, and round. So the head's stage
has a second gradient of the parameter, which is in place while a backward of that stage runs, and which the
end of the step adds to the first:

    sums = TiedSums(engine, {3: ["embed"]})    # by stage, keys of tied layers
    sums.exchange(stage)                       # before a backward of a stage, and after it
    sums.add()                                 # before DeepSpeed reduces gradients
"""

import torch

from ..section.plans import Stage
from ..upstream import Engine
from .copies import begin_sum, gradient_of, places_in_bf16, place_of_gradients


class TiedSums:
    """`apart`: by stage, keys of tied layers whose gradients it adds up apart from the rank's other stages."""

    def __init__(self, engine: Engine, apart: dict[int, list[str]]):
        self._engine, self._apart = engine, apart
        # This step's sums of these stages; while a backward of one runs, the sum of the rank's other stages.
        self._sums: dict[torch.nn.Parameter, torch.Tensor | None] = {}

    def exchange(self, stage: Stage) -> None:
        """Exchanges the gradients of the tied weights for the stage's sums."""
        for weight in self._weights(stage.index):
            self._sums[weight] = _exchanged(self._engine, weight, self._sums.get(weight))

    def add(self) -> None:
        """Adds the sums to the gradients of the tied weights, and forgets them."""
        for weight, ours in self._sums.items():
            if ours is not None:
                if self._engine.using_bf16_optimizer:
                    begin_sum(self._engine.optimizer, weight)
                theirs = gradient_of(self._engine, weight)
                if theirs is None:
                    setattr(weight, place_of_gradients(self._engine), ours)
                else:
                    theirs.add_(ours)
        self._sums.clear()

    def held(self) -> list[torch.Tensor]:
        """The sums of this step."""
        return [ours for ours in self._sums.values() if ours is not None]

    def _weights(self, stage: int) -> list[torch.nn.Parameter]:
        model = self._engine.module
        tied = [model.tied_comms[key] for key in self._apart.get(stage, ())]
        weights = [model._recursive_getattr(of["module"], name) for of in tied for name in of["weight_attr"]]
        return [weight for weight in dict.fromkeys(weights) if weight.requires_grad]


def _exchanged(engine: Engine, weight, ours: torch.Tensor | None) -> torch.Tensor | None:
    """Puts `ours` where DeepSpeed adds up the gradient, and returns what was there."""
    if not engine.using_bf16_optimizer:
        place = place_of_gradients(engine)
        theirs = getattr(weight, place, None)
        setattr(weight, place, ours)
        return theirs
    theirs = None
    for group, index in places_in_bf16(engine.optimizer, weight):
        sums = engine.optimizer.fp32_groups_gradients[group]
        theirs, sums[index] = sums[index], torch.zeros_like(sums[index]) if ours is None else ours
    return theirs
