# SPDX-License-Identifier: Apache-2.0
"""A model that runs under a plan, over torch.distributed; the package shows how to use it."""

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ostinato.nn import ShardedLogits
from ostinato.nn.lanes import computed_beside
from ostinato.groups import later_than, link_groups, make_group, timeout_of
from ostinato.ranks.names import agreed
from ostinato.ranks.position import Position
from ostinato.ranks.starting import starting
from ostinato.ranks.watch import Watch
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from ostinato import _plugin, offload

from .agreement import Agreement
from .batches import Batches, as_arguments
from .checks import (
    IN_A_MODULE,
    PipelineError,
    changes_named,
    check_copies,
    check_device,
    check_ties,
    check_trained,
    check_weights,
    check_wrapped,
    checked_loss,
    lowered,
    place_in,
)
from .clipping import clip, repeated
from .draws import Draws, unlike
from .fully_sharded import keep_unsharded, outermost, reduced_once, reshard
from .outside import Outside, shapes_of
from .precision import Autocast
from .serving import MOST_SLOTS, SLOTS, Answer, Serving
from .stages import LOSS, Build, ChainOfLayers, InARow, Stage, build_of, computes_loss, module_of, own_stages
from .ties import Tie, Ties, ties_of
from .wrappers import innermost, kinds_of, must_run_whole


class Pipeline(nn.Module):
    """This rank's part of a model and the executor that runs it.

    plan, placement: files; the placement's default is placement.toml beside the plan. build: makes the module
    of each stage that this rank runs; a chain of layers stands for layers(chain). A stage takes the outputs of
    the stages before it, one argument each; a stage with none before it takes the inputs of step().
    loss_fn(outputs, targets) returns a scalar, the mean over a micro-batch. group: its ranks are the plan's
    devices, in order; the default group by default. timeout_s: a rank that waits longer says for what, and
    stops; the group's by default. dynamic_shapes: shapes of tensors between stages may change at any time.

    All ranks of the group must make it, within timeout_s of each other, and call step(), infer() or serve()
    equally often. It has only this rank's parameters: make an optimizer of parameters() on every rank. Raises
    ValueError for wrong files, and PipelineError.
    """

    def __init__(
        self,
        plan: str | Path,
        build: Build | Sequence[nn.Module],
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        placement: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        timeout_s: float | None = None,
        dynamic_shapes: bool = False,
    ):
        super().__init__()
        self._files = plan, placement
        self.program, build = lowered(plan, placement), build_of(build)
        self.rank, self._ranks = place_in(group, self.program)
        timeout_s = timeout_of(group) if timeout_s is None else timeout_s
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise PipelineError(f"timeout_s is {timeout_s!r}: expected a number of seconds above 0")
        self._device, self._timeout_s, self._dynamic = torch.device(device), timeout_s, dynamic_shapes
        self._at_work, self._broken = threading.Lock(), False
        self._calls, self._refused = 0, False  # of step() and infer(); the last of them, before it ran
        self._agreement = Agreement(self._ranks, timeout_s)
        check_copies(self.program)
        if len(self._ranks) > 1:
            check_device(self._device)
        if isinstance(build, ChainOfLayers):
            build.check(self.program.stages)
            if at_once := computed_beside(self.program.stages, build.chain):
                raise PipelineError(at_once)
        offload.check(self.program, self._device)
        self._batches = Batches(
            [stage.name for stage in self.program.stages if not stage.inputs],
            build.keywords() if isinstance(build, ChainOfLayers) else None,
            self.micro_batches,
        )
        self._called: set[str] = set()  # step, infer: at least once
        sharded = any(len(stage.ranks) > 1 for stage in self.program.stages)
        self._splits = any(i.action == "W" for i in self.program.instructions(self.rank))
        self._draws = Draws(self._device) if sharded and self.trains else None  # of the first step
        # Losses or outputs of the last step, by stage that feeds no other.
        self._results: dict[int, list] = {}
        ties = ties_of(self.program, build, self._device, loss_fn)
        check_ties(ties)
        if len(self._ranks) > 1:
            self._agreement.check("plan", self.program.plan_sha256, "hold a different plan")
            self._agreement.check("ties", "; ".join(map(str, ties)), "see different shared weights")
        with (
            starting("making its pipeline", self._ranks, timeout_s) if len(self._ranks) > 1 else nullcontext()
        ):
            self._make(build, loss_fn, ties, group)

    def _make(
        self, build: Build, loss_fn: Callable | None, ties: list[Tie], group: dist.ProcessGroup | None
    ) -> None:
        """To be called on all ranks, with the same plan."""
        ranks = self._ranks
        limit = later_than(self._timeout_s)
        self._group = make_group(ranks, group, timeout=limit) if len(ranks) > 1 else None
        self._links = (
            link_groups(self.program.links, ranks, self._group, self._device, group, limit)
            if self._group is not None
            else {}
        )
        self._own = own_stages(self.program, self.rank, ranks, self._group, self._timeout_s)
        self._offloaded = {
            s.index: offload.Offloaded() for s in self._own if self.program.stages[s.index].offload
        }
        self.stages = nn.ModuleDict(
            {str(stage.index): module_of(build, stage).to(self._device) for stage in self._own}
        )
        for stage in self._own:
            self._held(stage)
        scores = any(computes_loss(self.program.stages[stage.index]) for stage in self._own)
        # Where it is used: a checkpoint could have its parameters from a rank on which nothing trains them.
        self.loss_fn = loss_fn if scores else None
        if isinstance(self.loss_fn, nn.Module):
            self.loss_fn.to(self._device)
        modules = build.modules(loss_fn) if isinstance(build, ChainOfLayers) else {}
        self._names = build.names(loss_fn) if isinstance(build, ChainOfLayers) else {}
        here = {layer for stage in self._own for layer in stage.layers} | ({LOSS} if scores else set())
        self._ties = Ties(ties, modules, here, ranks, self._group, self._timeout_s)
        self._ties.begin()
        self.reset_shapes()
        self._watch = self._make_watch()

    @property
    def trains(self) -> bool:
        """Whether the plan has backwards."""
        return any(stage.has_backward for stage in self.program.stages)

    @property
    def micro_batches(self) -> int:
        return self.program.micro_batches

    def reset_shapes(self) -> None:
        """Call it on all ranks, between steps, when shapes of tensors between stages change: stages announce
        them only once."""
        if self._broken:
            raise PipelineError(
                "an earlier step failed, so messages of it may be on their way: make a new pipeline"
            )
        with self._one_call():
            self._executor = self._running = self._make_executor(self.program, self._forward_of)
            self._forwards: Any = None  # its executor
            self._runs = {stage.index: self._held(stage) for stage in self._own}
            self._seen: set[tuple[int, str]] = set()  # stages whose weights, or whose loss, were looked at
            self._serving: tuple[Serving, Any] | None = None  # with its executor

    def step(
        self, inputs: Any = None, targets: Any = None, losses: list | None = None, **keywords: Any
    ) -> torch.Tensor | None:
        """Runs forwards and backwards of one step, and adds the gradients, as the mean over the
        micro-batches, to the existing ones.

        inputs, targets: a tensor or tuple of tensors, cut along dimension 0, or a list with an entry per
        micro-batch; a dictionary by stage name where several stages take inputs. Only needed where a stage of
        this rank takes them; for a sharded stage, on each of its ranks. keywords: for the modules of all stages of
        this rank, cut likewise; those of layers() pass each to the layers that take it. A number, text, bool or
        None is for every micro-batch. losses: gets the loss of each micro-batch, in order, on ranks that compute it.
        Returns the mean loss on ranks that compute it, else None.
        """
        if losses is not None and not hasattr(losses, "extend"):
            raise PipelineError(f"losses is {losses!r}: expected a list, to which losses are added")
        if not self.trains:
            raise PipelineError(
                "the plan has no backwards: call infer(), or search a plan for a placement with backwards"
            )
        if not torch.is_grad_enabled():
            raise PipelineError(
                "step() computes gradients, but torch.no_grad() or inference_mode() has switched them off"
            )
        with self._one_call():
            fully_sharded, outside, named = outermost(self), Outside(), Outside()
            if self._splits:
                keep_unsharded(fully_sharded)
            with self._taken(inputs, targets, keywords, outside.apart, named.apart):
                for stage in self._own:
                    if not self.program.stages[stage.index].has_backward:
                        check_trained(stage.name, self.stages[str(stage.index)])
                with self._autocast.switched(on=False):
                    self._run(self._ties.summed(), reduced_once(fully_sharded))
                each = [loss for of_stage in self._results.values() for loss in of_stage if loss is not None]
            self._after_first("step", keywords)
            if self._draws is not None:
                self._check_draws(self._draws)
            if self._group is not None:
                named.sum(self._group, self._device)
            outside.backward(named)
            if losses is not None:
                losses.extend(each)
            return torch.stack(each).sum() / self.micro_batches if each else None

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float | str = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_(), over the gradients of all ranks, where a weight that several ranks
        hold counts once. All ranks must call it, between step() and the optimizer; each gets the norm."""
        elsewhere = self._ties.elsewhere()
        for stage in self._own:
            if stage.shard is not None:
                module = innermost(self.stages[str(stage.index)])
                if not isinstance(module, InARow):
                    raise PipelineError(
                        f'stage "{stage.name}" is sharded, and which of its weights other ranks hold, too, only your own module knows: clip '
                        "its gradients yourself, or cut the stage with layers()"
                    )
                elsewhere |= repeated(module.children()) if stage.shard.index else set()
        return clip(
            list(self.parameters()),
            elsewhere,
            self._group,
            self._device,
            max_norm,
            norm_type,
            error_if_nonfinite,
        )

    def infer(self, inputs: Any = None, **keywords: Any) -> list | None:
        """Runs forwards of as many requests as the plan has micro-batches, in the plan's order; returns a result
        per request, in order. keywords: as in step().

        A plan with backwards runs its forwards alone, without the loss: for validation. A rank returns when its own
        part is done: the first rank may begin the next call while the last one still works on this. Returns None on
        ranks without a stage that feeds no other.
        """
        with self._one_call(), torch.no_grad():
            try:
                with self._taken(inputs, None, keywords):
                    self._running = self._forwards_alone() if self.trains else self._executor
                    self._run()
                    ends = list(self._results.values())
            finally:
                self._running = self._executor
                reshard(outermost(self))
            self._after_first("infer", keywords)
        return (
            ends[0]
            if len(ends) == 1
            else [list(result) for result in zip(*ends, strict=True)]
            if ends
            else None
        )

    def serve(self, requests: Any = None, answer: Answer | None = None, slots: int = SLOTS) -> int:
        """Answers requests as long as they come, with many in flight; returns how many there were. All ranks must
        call it.

        requests: Requests(), or any iterable of what infer() takes for one; used on one rank, the first of a
        stage that takes inputs. answer(number, outputs) is called on ranks with a stage that feeds no other, in
        the thread of serve(), as soon as an answer is ready; numbers count from 0 in the order of the requests.
        slots: how many pass in a run, after which the pipeline empties once; the same on all ranks. None among
        requests: none right now.
        """
        if type(slots) is not int or not 1 <= slots <= MOST_SLOTS:
            raise PipelineError(f"slots is {slots!r}: expected a whole number from 1 to {MOST_SLOTS}")
        if self.trains:
            raise PipelineError(
                "the plan has backwards: search a plan with forward blocks only (ostinato plan --inference)"
            )
        with self._one_call():
            if self._serving is None or self._serving[0].program.micro_batches != slots:
                self._serving = self._make_serving(slots)
            serving, self._running = self._serving
            serving.modules = self._modules_here()
            try:
                serving.begin(requests, answer, self._timeout_s / 4)
                while serving.another_run():
                    self._run()
            finally:
                self._running = self._executor
            return serving.count

    def records(self) -> list[tuple[str, int, int]]:
        """What the last step ran: instruction, start and end in nanoseconds since the step began."""
        instructions = self.program.instructions(self.rank)
        return [(str(instructions[index]), start, end) for index, start, end in self._executor.records()]

    def position(self) -> str:
        """Where this rank is, in words; callable from any thread."""
        return str(self._position())

    def _position(self) -> Position:
        return Position(*self._running.position())

    def __reduce_ex__(self, protocol):
        raise PipelineError(
            "a Pipeline has connections to other ranks, and can be neither copied nor pickled: copy (AveragedModel(pipe.stages)) or save its "
            "`stages`, or save its state_dict()"
        )

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
            self._set_stage(executor, stage, forward_of)
        return executor

    def _forwards_alone(self):
        """Of a plan that trains."""
        if self._forwards is None:
            stages = list(range(len(self.program.stages)))
            program = self.program.forwards(self.micro_batches, stages)
            self._forwards = self._make_executor(program, self._inferring)
        return self._forwards

    def _inferring(self, index: int) -> Callable:
        return self._forward_of(index, trains=False)

    def _set_stage(self, executor, stage: Stage, forward_of: Callable[[int], Callable]) -> None:
        kept, (_, whole) = self._offloaded.get(stage.index), self._held(stage)
        executor.set_stage(
            stage.index,
            forward_of(stage.index),
            may_split=not whole,
            offload=None if kept is None else kept.move,
        )

    def _held(self, stage: Stage) -> tuple[nn.Module, bool]:
        """The module of a stage, and whether it runs backwards whole. Raises PipelineError where a wrapper in it does
        not run here."""
        module = self.stages[str(stage.index)]
        kinds = kinds_of(module)
        check_wrapped(stage.name, kinds)
        return module, stage.recompute or must_run_whole(kinds)

    def _see_wrappers(self) -> None:
        """A script may wrap or replace the modules in `stages` once the pipeline is made."""
        for stage in self._own:
            held = self._held(stage)
            if held != self._runs.get(stage.index):
                self._set_stage(self._executor, stage, self._forward_of)
                if self._forwards is not None:
                    self._set_stage(self._forwards, stage, self._inferring)
                self._runs[stage.index] = held

    def _make_serving(self, slots: int) -> tuple[Serving, Any]:
        try:
            program = lowered(*self._files, slots)
            serving = Serving(
                program,
                self.rank,
                self._ranks,
                self._group,
                self._modules_here(),
                self._device,
                self._dynamic,
            )
        except ValueError as error:
            raise PipelineError(str(error)) from None
        return serving, self._make_executor(serving.program, serving.forward_of)

    def _modules_here(self) -> dict[int, nn.Module]:
        return {stage.index: self.stages[str(stage.index)] for stage in self._own}

    @contextmanager
    def _one_call(self) -> Iterator[None]:
        """Around what uses the executor, which is one thread's at a time."""
        if not self._at_work.acquire(blocking=False):
            raise PipelineError(
                "another call of this pipeline is at work: make one call at a time, with a lock where several threads have requests, "
                "or let them put() into the Requests of one serve()"
            )
        try:
            yield
        finally:
            self._at_work.release()

    def _run(self, *around: AbstractContextManager) -> None:
        self._broken = self._group is not None
        try:
            with ExitStack() as stack:
                for context in around:
                    stack.enter_context(context)
                self._running.run()
            self._broken = self._refused = False
        except BaseException as error:  # KeyboardInterrupt, too: the other ranks would wait for this one
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
        this = weakref.ref(self)  # so that the watch, which has a thread, ends with the pipeline

        def position() -> Position:
            mine = this()
            return Position("has no pipeline any more") if mine is None else mine._position()

        def lost(why: str) -> None:
            mine = this()
            if mine is not None:
                mine._running.abandon(why)

        name, period_s = agreed("pipeline", self._ranks), min(1.0, self._timeout_s / 4)
        watch = Watch(
            _get_default_store(), name, self.rank, self.program.ranks, position, period_s, lost=lost
        )
        weakref.finalize(self, watch.close).atexit = False  # the watch handles the process's end itself
        return watch

    def _check_draws(self, draws: Draws) -> None:
        self._draws = None
        if said := unlike(self.program.stages, self._agreement.exchanged("draws", draws.text())):
            raise PipelineError(said)

    def _after_first(self, call: str, keywords: dict[str, Any]) -> None:
        """Of step() or infer(): a rank that leaves out an argument would compute something else with its default."""
        if call in self._called:
            return
        self._called.add(call)
        if call == "step":
            self._warn_of_whole()
        if self._group is not None:
            trains = call == "step"
            said = ", ".join(name + shapes_of(keywords[name]) * trains for name in sorted(keywords))
            self._agreement.check(f"{call} keywords", said, "gave other keyword arguments")

    def _warn_of_whole(self) -> None:
        if names := [f'"{self.program.stages[index].name}"' for index in self._executor.unsplit_stages]:
            warnings.warn(
                f"the backwards of {', '.join(names)} run whole though the plan splits them: activation checkpoints and compiled "
                "layers cannot be split, so plan whole backwards for them",
                stacklevel=4,
            )

    @contextmanager
    def _taken(self, *given: Any) -> Iterator[None]:
        """Around a run of step() or infer(): what Batches.held() takes, and results that do not stay in memory until the
        next one."""
        if self._refused and not self._broken and self._group is not None:
            self._meet_after_refusal()
        self._calls, self._refused = self._calls + 1, True
        self._see_wrappers()
        self._autocast = Autocast(self._device)
        self._results = {
            s.index: [None] * self.micro_batches
            for s in self._own
            if not self.program.stages[s.index].outputs
        }
        try:
            with self._batches.held(*given):
                yield
        finally:
            self._results = {}

    def _meet_after_refusal(self) -> None:
        """Ranks that did not refuse the call wait in it for this one, and would pair its next batch with their last."""
        self._agreement.check(
            "refused call",
            str(self._calls),
            "had another call refused",
            f"call {self._calls} was refused on rank {self.rank} only, and the ranks that made it wait there: let a refused call end "
            "the run, or make a new pipeline on all ranks",
        )

    # ---- called by the executor

    def _forward_of(self, index: int, trains: bool = True) -> Callable:
        """`trains`: if the plan does."""
        module, stage = self.stages[str(index)], self.program.stages[index]
        offloaded = self._offloaded.get(index) if trains else None
        this = weakref.proxy(self)  # the pipeline owns the executor, which keeps this function
        last, scored = not stage.outputs, stage.has_backward and trains

        def forward(micro_batch: int, inputs: tuple | None):
            with this._autocast.switched(on=True):
                if offloaded is None:
                    return run(micro_batch, inputs)
                with offloaded.of(micro_batch, (*module.parameters(), *module.buffers())):
                    return run(micro_batch, inputs)

        def run(micro_batch: int, inputs: tuple | None):
            arguments = this._given(stage.name, micro_batch) if inputs is None else inputs
            keywords = this._batches.keywords[micro_batch]
            if this.rank != stage.ranks[0]:  # each rank has their whole gradients, and the first one's count
                keywords = Outside().apart(keywords)
            draws = this._draws if len(stage.ranks) > 1 and trains else None
            given = inputs is None and arguments, keywords, last and this._batches.targets[micro_batch]
            with (
                nullcontext() if scored else torch.no_grad(),
                nullcontext() if draws is None else draws.noted(index, micro_batch, given),
                changes_named(stage.name),
            ):
                outputs = module(*arguments, **keywords)
            if scored:
                this._check_weights(index, module, f'stage "{stage.name}"', outputs, (arguments, keywords))
            if not last:
                return outputs
            if not scored:
                this._results[index][micro_batch] = (
                    outputs.whole() if isinstance(outputs, ShardedLogits) else outputs
                )
                return ()
            loss = this._loss(index, outputs, micro_batch)
            this._results[index][micro_batch] = loss.detach()
            return loss / this.micro_batches

        return forward

    def _given(self, name: str, micro_batch: int) -> tuple:
        given = self._batches.inputs(name, micro_batch)
        if given is None:
            raise PipelineError(f'stage "{name}" takes the inputs of the step, but rank {self.rank} got none')
        return as_arguments(given)

    def _loss(self, index: int, outputs: Any, micro_batch: int) -> torch.Tensor:
        stage, targets = self.program.stages[index].name, self._batches.targets[micro_batch]
        loss = checked_loss(stage, self.loss_fn, outputs, targets, self.rank)
        self._check_weights(index, self.loss_fn, "loss_fn", loss, (outputs, targets), right=IN_A_MODULE)
        return loss

    def _check_weights(
        self, index: int, module: Any, maker: str, made: Any, given: Any, **right: str
    ) -> None:
        """Of the first micro-batch of a stage."""
        if (index, maker) not in self._seen:
            self._seen.add((index, maker))
            # What fully_shard() has changed computes with weights that it makes.
            if not (isinstance(module, nn.Module) and outermost(module)):
                check_weights(self, maker, made, given, self._names, **right)
