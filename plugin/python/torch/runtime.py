# SPDX-License-Identifier: Apache-2.0
"""A plan on torch.distributed.pipelining's own runtime, if that can run it.

    schedule = ostinato.torch.schedule("plan.json", layers([...]), loss_fn)
    schedule.step(x)                       # on the rank of the first stage
    schedule.step(target=y, losses=[])     # on the rank of the last; on all other ranks: schedule.step()

The runtime is torch's private `_PipelineScheduleRuntime`: it gets the order of the computes, and derives
transfers itself. It knows chains of stages on one rank each (several a rank, in any order), with whole or
split backwards. Anything else in a plan is refused by name; `Pipeline` runs it.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ostinato.autograd import nodes, reaches
from ostinato.buffers import Buffers
from torch.utils._pytree import tree_map

from .checks import PipelineError, check_device, lowered, place_in
from .fully_sharded import keep_unsharded
from .stages import Build, ChainOfLayers, build_of, module_of, own_stages
from .ties import ties_of


def schedule(
    plan: str | Path,
    build: Build | Sequence[torch.nn.Module],
    loss_fn: Callable,
    placement: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
):
    """A `_PipelineScheduleRuntime` that holds this rank's stages. Raises PipelineError where torch cannot run
    the plan."""
    program, build = lowered(plan, placement), build_of(build)
    check(program)
    if isinstance(build, ChainOfLayers):
        build.check(program.stages)
    for tie in ties_of(program, build, device, loss_fn):
        raise PipelineError(
            f"torch.distributed.pipelining cannot run this plan: {tie} share a weight, but are on several ranks; ostinato.torch.Pipeline can"
        )
    try:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    except ImportError as error:
        raise PipelineError(f"torch {torch.__version__} has no schedule runtime: {error}") from None
    rank, ranks = place_in(group, program)
    splits = any(instruction.action == "W" for instruction in program.instructions(rank))
    count, where, made_of = len(program.stages), torch.device(device), mended(PipelineStage, splits)
    if len(ranks) > 1:
        check_device(where, group)
    stages = [
        made_of(module_of(build, stage).to(where), stage.index, count, where, group=group)
        for stage in own_stages(program, rank, ranks, group)
    ]
    if splits:
        keep_unsharded(stage.submod for stage in stages)
    mean_of = loss_of(loss_fn, program.micro_batches)
    made = _PipelineScheduleRuntime(stages, program.micro_batches, loss_fn=mean_of, scale_grads=False)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.csv"
        rows.write_text("".join(program.text(r, transfers=False) + "\n" for r in range(program.ranks)))
        made._load_csv(str(rows), format="compute_only")
    return made


def mended(kind: Any, splits: bool) -> type:
    """PipelineStage, which learns shapes from a forward and a backward with uninitialised inputs; without what
    these write to buffers (BatchNorm's statistics, an expert's tokens). Its split backward detaches outputs in
    place, which no view allows (nn.Linear returns one), and leaves out, without a word, weights that make an output
    without the inputs, as after frozen stages: there it runs whole."""

    class Mended(kind):
        def _prepare_forward_infra(self, *given: Any, **keywords: Any) -> Any:
            buffers = Buffers({self.stage_index: self.submod})
            self._restore_buffers = partial(buffers.restore, buffers.now())
            return super()._prepare_forward_infra(*given, **keywords)

        def _post_metadata_inference_cleanup(self) -> None:
            super()._post_metadata_inference_cleanup()
            if restore := self.__dict__.pop("_restore_buffers", None):
                restore()

        def forward_maybe_with_nosync(self, *given: Any, **keywords: Any) -> Any:
            made = super().forward_maybe_with_nosync(*given, **keywords)
            return tree_map(no_view, made) if splits else made

        def backward_one_chunk(
            self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **keywords: Any
        ) -> Any:
            if not full_backward and not self.is_first:
                made, given = self.fwd_cache[bwd_chunk_id]
                split = all_reach((loss,) if self.is_last else made, given)
                self.dw_builder = None if split else nothing_left
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, **keywords)

    return Mended


def no_view(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) and value._is_view() else value


def nothing_left() -> Callable[[], None]:
    """The second half of a backward that the first half has run whole."""
    return lambda: None


def all_reach(outputs: Sequence, inputs: Sequence) -> bool:
    """Whether each output that needs a gradient was made of an input that needs one."""
    ends = set(nodes(inputs))
    return all(reaches(start, ends) for start in nodes(outputs))


def loss_of(loss_fn: Callable, micro_batches: int) -> Callable:
    """With gradients of the mean over the micro-batches. torch would instead divide the gradients after the
    step: earlier steps', too, and twice for a weight in two stages of a rank."""

    def loss_of_one(*given: Any, **keywords: Any) -> Any:
        loss = loss_fn(*given, **keywords)
        if torch.is_tensor(loss) and loss.requires_grad:
            # Of a copy, because torch begins the second half of a split backward at nodes that use weights, where
            # hooks run once more: loss_fn may return what such a node made. (torch detaches it, so it is no view.)
            loss = loss.clone()
            loss.register_hook(lambda gradient: gradient / micro_batches)
        return loss

    return loss_of_one


def check(program) -> None:
    """Raises PipelineError for what torch's runtime cannot run."""
    for index, stage in enumerate(program.stages):
        reason = ""
        if len(stage.ranks) > 1:
            reason = "is on several ranks"
        elif stage.offload:
            reason = "is offloaded"
        elif stage.lane:
            reason = f"is on lane {stage.lane}"
        elif not stage.has_backward:
            reason = "has no backward"
        elif list(stage.inputs) != ([index - 1] if index else []):
            reason = "does not take just the output of the stage before it"
        if reason:
            raise PipelineError(
                f'torch.distributed.pipelining cannot run this plan: stage "{stage.name}" {reason}; ostinato.torch.Pipeline can'
            )
    last = len(program.stages) - 1
    order = [
        i.micro_batch
        for i in program.instructions(program.stages[last].ranks[0])
        if i.stage == last and i.action == "F"
    ]
    if order != sorted(order):
        raise PipelineError(
            "torch.distributed.pipelining cannot run this plan: it computes the losses of micro-batches out of order; "
            "ostinato.torch.Pipeline can"
        )
