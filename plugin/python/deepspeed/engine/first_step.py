# SPDX-License-Identifier: Apache-2.0
"""What only step 1 shows of a model: where its losses may equal 1F1B's up to rounding, but not bit for bit,
and whether its activations are as large as profiled.

    first = FirstStep(program, stages, stock_parts, module, samples=4)
    first.begin()                                   # before train_batch(): hooks on layers of this rank
    first.handed_on(stage, outputs)                 # around the passes of a stage (StagePasses)
    shown = first.end(planned_in_steps=False)       # all ranks
    for line in shown.lines():                      # what rank 0 is to say
        say(line)

A border between stages rounds in two ways. Behind a layer that hands on several tensors with gradients,
backwards start from all of them at once, or from one after the other: that matters where either the plan or
DeepSpeed's partition cuts, and not both. Tensors and gradients with gaps in memory (slices, expanded ones)
arrive without, and kernels may sum in another order over other strides: that matters where the plan alone cuts,
as DeepSpeed sends no activation that is not contiguous (stages/borders.py has its gradients).

Modules of one class under torch.jit.script share a program, and torch compiles its forward after the first one in
a process, and its backward after the first one: these round differently. Unless a rank runs just what it runs
under 1F1B, its first runs are of other layers or micro-batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from ostinato.autograd import strangers
from ostinato.groups import everyones
from torch.utils.hooks import RemovableHandle

from ..equal.compared_steps import Shown
from ..errors import OstinatoError
from ..place.tied import Holders
from ..section import plans
from ..section.plans import Stage
from ostinato.buffers import Buffers, Kept
from ..tell import announce
from ..stages.module import StagedLayers


SAME_SIZE = 0.1  # relative; activations that differ less are not reported


class FirstStep:
    """Of this rank. `parts`: DeepSpeed's own partition, as PipelineModule has it. `samples`: of a micro-batch."""

    def __init__(
        self,
        program: Any,
        stages: Sequence[Stage],
        parts: list[int],
        module: StagedLayers,
        samples: int,
        holders: Holders,
    ):
        self._program, self._stages, self._parts, self._module = program, stages, parts, module
        self._holders, self._known = holders, set[int]()  # stages: refuse_unregistered()
        self._hooks: list[RemovableHandle] = []
        self._several: set[int] = set()  # layers after which several tensors with gradients cross
        self._gaps: set[int] = set()  # layers after which something that has gaps in memory crosses
        self._buffers = Buffers({})  # of the stage, and what they were as its backward began
        self._before: Kept = {}
        self._written_again: set[int] = set()  # layers that write to buffers when a backward runs them again
        self._written_by_halves: set[int] = set()  # of these, those that the second half runs once more
        # By layer, (bytes handed on, bytes in the plan) of a micro-batch where they differ.
        self._sizes: dict[int, tuple[int, int]] = {}
        # 0: the placement is not from a profile, and its sizes may be anything.
        self._times = samples / program.micro_batch_size if program.micro_batch_size else 0.0

    def begin(self) -> None:
        """Looks at the layers behind which DeepSpeed's partition cuts, and this plan does not."""
        inside = {layer for stage in self._stages for layer in stage.layers[:-1]}
        functions = self._module.layers_here()
        for layer in {part - 1 for part in self._parts[1:-1]} & inside:
            if isinstance(function := functions.get(layer), torch.nn.Module):
                self._hooks.append(function.register_forward_hook(self._hook(layer)))

    def _hook(self, layer: int):
        def look(module, inputs, outputs) -> None:
            if _gradients(outputs) > 1:
                self._several.add(layer)

        return look

    def refuse_unregistered(self, stage: Stage, inputs: Any, made: Any) -> None:
        """Once a stage: raises OstinatoError where it computes with a weight of a layer on another rank, which
        DeepSpeed's partition has on its rank. `made`: its outputs, or the loss."""
        if stage.index in self._known:
            return
        self._known.add(stage.index)
        owners, layers = {self._owner(layer) for layer in stage.layers}, ", ".join(map(str, stage.layers))
        for weight in strangers(_tensors(made), _tensors(inputs), self._module.parameters()):
            for layer in self._holders.get(weight, set()) - set(stage.layers):
                if self._owner(layer) in owners:
                    raise OstinatoError(
                        f"the stage with layers {layers} computes with a parameter ({' x '.join(map(str, weight.shape))}) of layer {layer}, which is not "
                        "registered there: DeepSpeed's own partition has both on one rank, but the plan has them apart; use "
                        "TiedLayerSpec for layers that share weights, or register it in both, and plans keep them together"
                    )

    def _owner(self, layer: int) -> int:
        return bisect_right(self._parts, layer) - 1

    def taken(self, stage: Stage, inputs: Any) -> None:
        """What the stage before it made."""
        if stage.first not in self._parts:
            self._look_at_gradients(inputs, stage.first - 1)

    def handed_on(self, stage: Stage, outputs: Any) -> None:
        last = stage.layers[-1]
        planned = round(self._times * self._program.stages[stage.index].output_bytes)
        bytes_now = sum(t.numel() * t.element_size() for t in _tensors(outputs))
        if planned and abs(bytes_now - planned) > SAME_SIZE * planned:
            self._sizes[last] = bytes_now, planned
        if _gradients(outputs) > 1 and self._starts_at_once(stage):
            self._several.add(last)
        leaves = any(self._stages[after].ranks != stage.ranks for after in stage.outputs)
        if last + 1 not in self._parts and leaves and _has_gaps(outputs):
            self._gaps.add(last)

    def _starts_at_once(self, stage: Stage) -> bool:
        """Its backward starts from all outputs together, and not from one after the other. O(instructions)."""
        return not plans.one_by_one(stage, self._parts) or plans.splits(self._program, stage)

    def _look_at_gradients(self, values: Any, layer: int) -> None:
        """`layer` handed on `values`."""

        def look(gradient: torch.Tensor) -> None:
            if _has_gaps(gradient):
                self._gaps.add(layer)

        for tensor in _tensors(values):
            if tensor.requires_grad:
                tensor.register_hook(look)

    def before_backward(self, stage: Stage) -> None:
        held = self._module.layers_here()
        self._buffers = Buffers({layer: held[layer] for layer in stage.layers})
        self._before = self._buffers.now()

    def after_backward(self, part: str) -> None:
        """`part`: "B" (whole), "I" or "W"."""
        again = {int(name.partition(".")[0]) for name in self._buffers.changed(self._before)}
        self._written_again |= again
        if part == "W":
            self._written_by_halves |= again

    def end(self, planned_in_steps: bool) -> Shown:
        """All ranks must call it."""
        for handle in self._hooks:
            handle.remove()
        again = {
            layer
            for stage in self._stages
            for layer in self._written_again & set(stage.layers)
            if planned_in_steps or layer in self._written_by_halves or not self._as_in_1f1b(stage, layer)
        }
        scripted = {layer for layer, function in self._module.layers_here().items() if _is_scripted(function)}
        *of_ranks, sizes = zip(
            *everyones((self._several, self._gaps, again, scripted, self._sizes)), strict=True
        )
        several, gaps, written, compiled = (sorted(set[int]().union(*layers)) for layers in of_ranks)
        first_runs = [] if self._runs_as_1f1b() else compiled
        differing = {layer: pair for of_rank in sizes for layer, pair in of_rank.items()}
        fixed = not (planned_in_steps or self._module.dynamic_shape)
        rounding = ((announce.several, several), (announce.gaps, gaps), (announce.scripted, first_runs))
        return Shown(
            announce.other_sizes(differing) if differing and fixed else "",
            [tell(layers) for tell, layers in rounding if layers],
            written,
        )

    def _runs_as_1f1b(self) -> bool:
        alike = len(self._stages) == len(self._parts) - 1 and not announce.places(self._stages, self._parts)
        return alike and all(self._as_in_1f1b(stage, stage.first) for stage in self._stages)

    def _as_in_1f1b(self, stage: Stage, layer: int) -> bool:
        return plans.as_in_1f1b(self._program, stage, self._owner(layer), len(self._parts) - 1)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [t for t in (values if isinstance(values, tuple) else (values,)) if torch.is_tensor(t)]


def _gradients(outputs: Any) -> int:
    """How many tensors a backward starts from."""
    return sum(t.requires_grad for t in _tensors(outputs)) if isinstance(outputs, tuple) else 1


def _is_scripted(layer: Any) -> bool:
    """Whether it shares a program with other layers of its class; a traced module has its own."""
    parts = layer.modules() if isinstance(layer, torch.nn.Module) else ()
    return any(isinstance(part, torch.jit.RecursiveScriptModule) for part in parts)


def _has_gaps(values: Any) -> bool:
    """Whether one of the tensors has gaps in memory, or lies over itself."""
    return any(torch.empty_like(t, device="meta").stride() != t.stride() for t in _tensors(values))
