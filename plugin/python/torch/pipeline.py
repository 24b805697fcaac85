# SPDX-License-Identifier: Apache-2.0
"""A model that runs as a plan says, over torch.distributed; see the package for how it is used."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ostinato.errors import Error, counted
from ostinato.nn import ShardedLogits
from ostinato.groups import link_groups, make_group
from ostinato.ranks.names import agreed
from ostinato.ranks.reports import Missing, exchanged
from ostinato.ranks.starting import starting
from ostinato.ranks.watch import Watch
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from ostinato import _plugin

from .batches import as_arguments, by_stage, micro_batches
from .outside import Outside
from .serving import SLOTS, Answer, Serving
from .stages import Build, ChainOfLayers, own_stages
from .ties import Tie, Ties, in_words, ties_of


class PipelineError(Error, RuntimeError):
    """A plan that does not fit this run; `str()` says what is wrong and what would be right."""


class Pipeline(nn.Module):
    """This rank's part of a model and the executor that runs it.

    plan, placement: files; the placement is placement.toml beside the plan where it is not given. build:
    makes the module of each stage that this rank runs (stages.layers() for a chain). A stage takes the
    outputs of the stages before it, one argument each; one that has none takes the inputs of step().
    loss_fn(outputs, targets) gives a scalar, the mean over a micro-batch. group: its ranks are the plan's
    devices, in order; the default group where it is not given. timeout_s: a rank that waits longer says for
    what. dynamic_shapes: what travels between stages may change its shapes at any time.

    All ranks of the group must make it, within timeout_s of each other, and call step(), infer() or serve()
    equally often. Parameters of other ranks are not here: make the optimizer of parameters(), on every rank.
    Raises ValueError for wrong files, and PipelineError.
    """

    def __init__(
        self,
        plan: str | Path,
        build: Build,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        placement: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
        dynamic_shapes: bool = False,
    ):
        super().__init__()
        self._files = plan, placement
        self.program = lowered(plan, placement)
        self.loss_fn = loss_fn
        self._device, self._timeout_s, self._dynamic = torch.device(device), timeout_s, dynamic_shapes
        self.rank, self._ranks = place_in(group, self.program)
        check_copies(self.program)
        self._takers = [stage.name for stage in self.program.stages if not stage.inputs]
        self._inputs: dict[str, list] = {}  # by stage that takes them
        self._targets: list = []
        self._results: dict[
            int, list
        ] = {}  # of the last step, by stage that feeds no other: losses or outputs
        ties = ties_of(self.program, build)
        check_ties(ties)
        if len(self._ranks) > 1:
            self._agree("plan", self.program.plan_sha256, "hold another plan")
            self._agree("ties", in_words(ties), "see other weights in common")
        with (
            starting("making its pipeline", self._ranks, timeout_s) if len(self._ranks) > 1 else nullcontext()
        ):
            self._make(build, ties, group)

    def _make(self, build: Build, ties: list[Tie], group: dist.ProcessGroup | None) -> None:
        """On all ranks, which have the same plan."""
        ranks = self._ranks
        self._group = make_group(ranks, group) if len(ranks) > 1 else None
        self._links = (
            link_groups(self.program.links, ranks, self._group, self._device, group)
            if self._group is not None
            else {}
        )
        self._own = own_stages(self.program, self.rank, ranks, self._group, self._timeout_s)
        self.stages = nn.ModuleDict({str(stage.index): build(stage).to(self._device) for stage in self._own})
        chain = build.chain if isinstance(build, ChainOfLayers) else []
        self._ties = Ties(ties, chain, ranks, self._group, self._timeout_s)
        self._ties.begin()
        self.reset_shapes()
        self._watch = self._make_watch()

    @property
    def trains(self) -> bool:
        """The plan has backwards."""
        return any(stage.has_backward for stage in self.program.stages)

    @property
    def micro_batches(self) -> int:
        return self.program.micro_batches

    def reset_shapes(self) -> None:
        """Shapes of what travels between stages are announced once. Call it on all ranks, between steps, when
        they change."""
        self._executor = self._running = self._make_executor(self.program, self._forward_of)
        self._serving: tuple[Serving, Any] | None = None  # with its executor

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor | None:
        """Forwards and backwards of one step; gradients are added to those that are there, as the mean over
        the micro-batches.

        inputs, targets: a tensor or tuple of tensors, cut along dimension 0, or a list with an entry a
        micro-batch; a dictionary by stage name where several stages take inputs. Looked at only where a stage
        of this rank takes them: on every one of its ranks, if it is sharded. Returns the mean loss on ranks
        that compute it, else None.
        """
        if not self.trains:
            raise PipelineError(
                "the plan has no backwards: call infer(), or search a placement that has them"
            )
        if not torch.is_grad_enabled():
            raise PipelineError(
                "step() computes gradients, which torch.no_grad() or inference_mode() has switched off here"
            )
        outside = Outside()
        self._take(inputs, targets, outside.apart)
        self._run(self._ties.summed())
        outside.backward()
        losses = [loss for of_stage in self._results.values() for loss in of_stage if loss is not None]
        return torch.stack(losses).sum() / self.micro_batches if losses else None

    def infer(self, inputs: Any = None) -> list | None:
        """Forwards of as many requests as the plan has micro-batches, in the plan's order; a result a
        request, in order.

        A rank returns when its own part is done: the first one may begin the next call while the last one
        still works on this. None on ranks without a stage that feeds no other.
        """
        if self.trains:
            raise PipelineError(
                "the plan has backwards: call step(), or search a placement of forward blocks only (ostinato plan --inference)"
            )
        self._take(inputs, None)
        with torch.no_grad():
            self._run()
        ends = list(self._results.values())
        return (
            ends[0]
            if len(ends) == 1
            else [list(result) for result in zip(*ends, strict=True)]
            if ends
            else None
        )

    def serve(self, requests: Any = None, answer: Answer | None = None, slots: int = SLOTS) -> int:
        """Answers requests as long as they come, many in flight; returns how many it were. On all ranks.

        requests: Requests(), or any iterable of what infer() takes for one; looked at on one rank, the first
        one of a stage that takes inputs. answer(number, outputs) is called on ranks with a stage that feeds
        no other, in the thread of serve(), as soon as an answer is there; numbers count from 0 in the order
        of the requests. slots: as many pass in a run, after which the pipeline empties once.
        """
        if self.trains:
            raise PipelineError(
                "the plan has backwards: search a placement of forward blocks only (ostinato plan --inference)"
            )
        if self._serving is None or self._serving[0].program.micro_batches < slots:
            self._serving = self._make_serving(slots)
        serving, self._running = self._serving
        try:
            serving.begin(requests, answer, self._timeout_s / 4)
            while serving.another_run():
                self._run()
        finally:
            self._running = self._executor
        return serving.count

    def records(self) -> list[tuple[str, int, int]]:
        """What the last step ran: instruction, begin and end in nanoseconds from the step's begin."""
        instructions = self.program.instructions(self.rank)
        return [(str(instructions[index]), start, end) for index, start, end in self._executor.records()]

    def position(self) -> str:
        """Where this rank is, in words; from any thread."""
        return self._running.position()

    def _make_executor(self, program, forward_of: Callable[[int], Callable]):
        everyone = list(range(program.ranks))
        executor = _plugin.Executor(
            program,
            self.rank,
            self._group,
            everyone,
            timeout_s=self._timeout_s,
            device=self._device,
            dynamic_shapes=self._dynamic,
            links=self._links,
        )
        for stage in self._own:
            executor.set_stage(stage.index, forward_of(stage.index), may_split=not stage.recompute)
        return executor

    def _make_serving(self, slots: int) -> tuple[Serving, Any]:
        modules = {stage.index: self.stages[str(stage.index)] for stage in self._own}
        try:
            program = lowered(*self._files, slots)
            serving = Serving(
                program, self.rank, self._ranks, self._group, modules, self._device, self._dynamic
            )
        except ValueError as error:
            raise PipelineError(str(error)) from None
        return serving, self._make_executor(serving.program, serving.forward_of)

    def _run(self, around: AbstractContextManager | None = None) -> None:
        try:
            with around or nullcontext():
                self._running.run()
        except Exception as error:
            if self._watch is None:
                pass
            elif isinstance(error, _plugin.ExecutionError):  # a peer is late or gone
                self._watch.give_up(str(error), aloud=isinstance(error, _plugin.StepTimeout))
            else:
                self._watch.tell_of(error)
            raise

    def _make_watch(self) -> Watch | None:
        if self._group is None:
            return None
        this = weakref.ref(self)  # the watch, whose thread lives on, ends with the pipeline

        def position() -> str:
            mine = this()
            return "its pipeline is gone" if mine is None else mine.position()

        def lost(why: str) -> None:
            mine = this()
            if mine is not None:
                mine._running.abandon(why)

        name, period_s = agreed("pipeline", self._ranks), min(1.0, self._timeout_s / 4)
        watch = Watch(
            _get_default_store(), name, self.rank, self.program.ranks, position, period_s, lost=lost
        )
        weakref.finalize(self, watch.close).atexit = False  # which the watch sees to itself
        return watch

    # ---- what the executor calls

    def _take(self, inputs: Any, targets: Any, apart: Callable[[Any], Any] = lambda value: value) -> None:
        def cut(value: Any, what: str) -> list:
            return list(map(apart, micro_batches(value, self.micro_batches, what)))

        self._inputs = {name: cut(value, "inputs") for name, value in by_stage(inputs, self._takers).items()}
        self._targets = cut(targets, "targets")
        self._results = {
            s.index: [None] * self.micro_batches
            for s in self._own
            if not self.program.stages[s.index].outputs
        }

    def _forward_of(self, index: int) -> Callable:
        module, stage = self.stages[str(index)], self.program.stages[index]
        this = weakref.proxy(self)  # the executor, which keeps this function, is the pipeline's
        last, scored = not stage.outputs, stage.has_backward

        def forward(micro_batch: int, inputs: tuple | None):
            arguments = this._given(stage.name, micro_batch) if inputs is None else inputs
            with nullcontext() if scored else torch.no_grad(), changes_named(stage.name):
                outputs = module(*arguments)
            if not last:
                return outputs
            if not scored:
                this._results[index][micro_batch] = (
                    outputs.whole() if isinstance(outputs, ShardedLogits) else outputs
                )
                return ()
            loss = this._loss(stage.name, outputs, micro_batch)
            this._results[index][micro_batch] = loss.detach()
            return loss / this.micro_batches

        return forward

    def _given(self, name: str, micro_batch: int) -> tuple:
        of_stage = self._inputs.get(name)
        if of_stage is None or of_stage[micro_batch] is None:
            raise PipelineError(
                f'stage "{name}" takes the inputs of the step, and rank {self.rank} was given none'
            )
        return as_arguments(of_stage[micro_batch])

    def _loss(self, stage: str, outputs: Any, micro_batch: int) -> torch.Tensor:
        targets = self._targets[micro_batch]
        try:
            loss = outputs if self.loss_fn is None else self.loss_fn(outputs, targets)
        except Exception as error:
            if targets is not None:
                raise
            what = f"{type(error).__name__}: {error}"
            raise PipelineError(
                f"loss_fn(outputs, None) raises {what}; rank {self.rank}, which computes the loss, was given no targets"
            ) from error
        maker = (
            f'stage "{stage}", which feeds no other and without a loss_fn computes the loss,'
            if self.loss_fn is None
            else "loss_fn"
        )
        if not torch.is_tensor(loss) or loss.numel() != 1:
            got = (
                f"a tensor of shape {tuple(loss.shape)}"
                if torch.is_tensor(loss)
                else f"a {type(loss).__name__}"
            )
            raise PipelineError(
                f"{maker} returns {got}: expected a tensor with one element, the mean loss of the micro-batch"
            )
        if not loss.requires_grad:
            raise PipelineError(
                f"{maker} returns a loss that has no gradient: nothing that it was computed from learns"
            )
        return loss

    def _agree(self, what: str, mine: str, differently: str) -> None:
        """Every rank has come here, and says the same."""
        try:
            held = exchanged(what, mine, self._ranks, self._timeout_s)
        except Missing as error:
            raise PipelineError(
                f"{error}: every rank of the group must make the pipeline; one that has ended says why in its log"
            ) from None
        differing = [rank for rank, said in enumerate(held) if said != held[0]]
        if differing:
            theirs, first = (held[rank][:200] or "none" for rank in (differing[0], 0))
            raise PipelineError(f"ranks {differing} {differently} than rank 0: {theirs} against {first}")


@contextmanager
def changes_named(stage: str) -> Iterator[None]:
    """Of a stage whose first layer changes its input in place, torch names neither."""
    try:
        yield
    except RuntimeError as error:
        if "leaf Variable that requires grad" not in str(error):
            raise
        raise PipelineError(
            f'stage "{stage}" changes what it is given in place, where the graph of the stages begins: its first layers must not '
            f"(inplace=False), or clone it first; torch says: {error}"
        ) from error


def check_ties(ties: list[Tie]) -> None:
    """Raises PipelineError where a weight in common would be cut in parts."""
    for tie in ties:
        if tie.sharded:
            raise PipelineError(
                f"{tie} are one weight, and a stage that several ranks share holds one of them: its parts would be weights by themselves. "
                "Give each layer its own weight, or place both on unshared stages"
            )


def lowered(plan: str | Path, placement: str | Path | None, micro_batches: int = 0):
    """The program of a plan, with its repetend repeated for as many micro-batches where it has fewer.

    ValueError with file and line where plan and placement are not right together.
    """
    return _plugin.lower(str(plan), str(placement or Path(plan).with_name("placement.toml")), micro_batches)


def check_copies(program) -> None:
    """Raises PipelineError where two stages hold the same layers: nobody would add up the gradients of the
    two."""
    held: dict[Sequence[int], str] = {}
    for stage in program.stages:
        layers = stage.layers
        if layers and layers in held:
            raise PipelineError(
                f'stages "{held[layers]}" and "{stage.name}" hold the same layers (two directions): that runs behind '
                "DeepSpeed's engine, which sums the gradients of both copies"
            )
        held[layers] = stage.name


def place_in(group: dist.ProcessGroup | None, program) -> tuple[int, list[int]]:
    """This process's pipeline rank, and the global ranks of the pipeline. Raises PipelineError for another
    size."""
    if not dist.is_initialized() and group is None and program.ranks == 1:
        return 0, [0]
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if len(ranks) != program.ranks:
        raise PipelineError(
            f'placement "{program.placement_name}" has {counted(program.ranks, "device")}, and the group has {counted(len(ranks), "rank")}'
        )
    return ranks.index(dist.get_rank()), ranks
