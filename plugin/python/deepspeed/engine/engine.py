# SPDX-License-Identifier: Apache-2.0
"""A PipelineEngine that trains by a plan.

The executor runs forwards, backwards and transfers; everything else is DeepSpeed's: the forward pass of a
stage with its loss, the data iterator, loss scaling, reduction of gradients, the optimizer step, timers,
monitors, checkpoints. The engine's class is changed when it is made; DeepSpeed's own class stays as it is.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain, count
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from ostinato.errors import put
from ostinato.profile.machine import freed_memory
from ostinato.groups import later_than, link_groups
from ostinato.offload import Offloaded
from ostinato.ranks.position import Position
from ostinato.ranks.presence import Presence
from ostinato.ranks.threads import weakly
from ostinato.ranks.watch import Watch, late_after
from ostinato.restrictions import is_deepspeeds, of_classes
from torch.distributed.distributed_c10d import _get_default_store

from ..section import plans
from ..tell import announce
from ..data.batches import Batches
from .clipping import clip_as_partitioned, counted_as_partitioned
from ..equal.compared_steps import ComparedSteps
from ..stages.borders import cross_as_in_1f1b, evaluation
from ..stages.copies import add_losses, watched_buffers
from ..errors import OstinatoError
from .batch_size import BatchSize
from .evaluation import Forwards
from ..tell.outside import Outside
from .plan_data import PlanData
from .run import StepState
from .learning_rates import over_all_groups
from .thawed import Thawed
from ..equal.random_numbers import RandomNumbers
from ..data.same_data import SameData
from ..section import refusals
from ..stages.sharding import couriers_of
from ..tell.step_memory import StepMemory
from ..data.step_plans import StepPlans
from ..tell.trace import Trace
from ..upstream import Engine

_engines = count()  # all ranks make their engines in the same order


def become(kind: type, engine: Engine) -> None:
    """Mixes `kind` in before the class of `engine`, whose __init__ has not run yet."""
    own = type(engine)
    engine.__class__ = type(own.__name__, (kind, own), {"__module__": own.__module__})


class PlanEngine(PlanData, BatchSize):
    """Mixed in before PipelineEngine."""

    def ostinato_begin(self, draws: frozenset[str], first: str | None) -> None:
        """To be called after __init__: makes the executors, and gives them this rank's stages. All ranks must
        call it. `draws`: what could draw different random numbers than under 1F1B. `first`: what
        1F1B has computed in the steps to compare.
        """
        run = self._ostinato
        run.group, run.links = self._own_groups()
        run.random_numbers = RandomNumbers(self, run.stages, draws)
        run.same_data = SameData(self, run.stages)
        run.couriers = couriers_of(run.stages, run.shards, self.device)
        run.forwards = Forwards(self, self._make_executor)
        if run.trains:
            run.first_step = self._first_step_of(run.program)
            run.executor = self._training_executor()
        if run.trains and self.device.type == "cpu":
            freed_memory.keep()
        if run.plans_steps:
            self._plan_steps()
        run.watch = self._watched()
        run.outside = Outside(self, run.watch, run.section.timeout_s)
        if run.paths.trace is not None:
            run.trace = Trace(run.paths.trace, run.program, self.global_rank, self.stage_id)
        if run.paths.memory is not None:
            run.memory = StepMemory(run.paths.memory, self.global_rank, self)
        if first is not None:
            run.compared = ComparedSteps(self, first, run.section.require, run.leave_check)

    def _plan_steps(self) -> None:
        """From here on each step gets its own plan."""
        run = self._ostinato
        assert run.group is not None
        asked, planner = run.section, min(stage.rank for stage in run.stages if stage.reads or stage.ends)
        size = asked.size or 0.0
        run.step_plans = StepPlans(
            run.group, run.placement, run.profile, size, asked.keep_order, asked.effort, planner
        )

    def _watched(self) -> Watch:
        """The watch over this pipeline; all ranks give it signs of life, as a checkpoint waits for all."""
        run, store, engine = self._ostinato, _get_default_store(), f"engine {next(_engines)}"
        timeout_s = run.section.timeout_s
        period_s = min(1.0, timeout_s / 4)
        position = weakly(self._position, Position("has no engine any more"))
        presence = Presence(engine, self.global_rank, dist.get_world_size(), position)
        name = f"{engine}, pipeline of rank {self.grid.pp_group[0]}"
        ranks, late_s = len(self.grid.pp_group), late_after(timeout_s)
        lost = weakly(self._lost)
        return Watch(store, name, self.stage_id, ranks, position, period_s, presence, late_s, engine, lost)

    def _lost(self, why: str) -> None:
        """The watch's thread calls it: another rank has given up. It takes part in no step from then on, so this rank
        leaves the one that runs, or the next, where it would wait."""
        run = self._ostinato
        run.lost = why
        if (running := run.running) is not None:
            running.abandon(why)

    def _make_executor(self, program, dynamic_shapes: bool, programs_change: bool = False):
        """An executor for this rank, without its stages."""
        run = self._ostinato
        assert run.group is not None
        ranks = [dist.get_group_rank(run.group, rank) for rank in self.grid.pp_group]
        return plans.compiled().Executor(
            program,
            self.stage_id,
            run.group,
            ranks,
            timeout_s=run.section.timeout_s,
            device=self.device,
            dynamic_shapes=dynamic_shapes,
            links=run.links,
            programs_change=programs_change,
        )

    def _training_executor(self):
        run = self._ostinato
        run.thawed = Thawed(self.module, run.stages, run.group)
        executor = self._make_executor(
            run.program, self.module.dynamic_shape or run.plans_steps, run.plans_steps
        )
        for stage in run.stages:
            if stage.on(self.stage_id):
                if stage.offloads:
                    run.offloaded[stage.index] = Offloaded()
                computes = not stage.lane  # a lane's stage has no parameters: DeepSpeed knows nothing of it
                executor.set_stage(
                    stage.index,
                    partial(weakly(self._train_forward), stage),
                    before_backward=partial(weakly(self._before_backward), stage) if computes else None,
                    after_backward=weakly(self._after_backward) if computes else None,
                    may_split=self.module.may_split(stage),
                    one_by_one=plans.one_by_one(stage, run.stock_parts),
                    offload=run.offloaded[stage.index].move if stage.offloads else None,
                )
        return executor

    def _own_groups(self):
        """Makes a separate group, and the groups of its links, for each pipeline."""
        program, limit = self._ostinato.program, later_than(self._ostinato.section.timeout_s)
        for ranks in self.grid.pipe_groups:
            group = dist.new_group(ranks, timeout=limit)
            links = link_groups(program.links, ranks, None, self.device, timeout=limit)
            if self.global_rank in ranks:
                mine = group, links
        return mine

    # ---- where DeepSpeed asks for the first or the last stage, it means the ranks that read inputs and the rank
    # that reports the loss; while a batch is read, the ranks that read labels; while a stage runs, that stage

    def is_first_stage(self):
        run = self._ostinato
        if not run.ready or run.same_data.looking:
            return super().is_first_stage()
        return any(stage.reads and stage.rank == self.stage_id for stage in run.stages)

    def is_last_stage(self):
        run = self._ostinato
        # __init__ tests transfers between neighbours, in the order of the ranks.
        if not run.ready or run.same_data.looking:
            return super().is_last_stage()
        if run.step.active is not None:
            return run.step.active.ends
        ranks = self._loss_ranks()
        return self.stage_id in ranks if run.step.reading else self.stage_id == ranks[0]

    def _loss_ranks(self) -> list[int]:
        """Pipeline ranks that compute losses; the first reports them all."""
        return [stage.rank for stage in self._ostinato.stages if stage.ends]

    def _loss_stage_global_rank(self):
        return self.grid.stage_to_global(self._loss_ranks()[0])

    # ---- a step

    def train_batch(self, *given: Any, data_iter: Any = None):
        """A subclass may want the iterator, or take no argument."""
        if given:
            (data_iter,) = given
        if not self._ostinato.trains:
            raise OstinatoError(
                "train_batch(): the plan holds forwards only, for eval_batch(); to train, search a plan for a placement with "
                "backward blocks"
            )
        self._refuse_failed("train_batch()")
        self.check_size()
        if not torch.is_grad_enabled():
            return super().train_batch()  # which DeepSpeed refuses before it reads anything
        if self._ostinato.adapt is not None:
            self._ostinato.adapt.before_step(self.global_steps)
        with self._ostinato.outside.call("train_batch()"):
            return self._train(data_iter, bool(given))

    def _train(self, data_iter: Any, given: bool):
        begin = time.perf_counter()
        run = self._ostinato
        if not self._steps_here:
            data_iter = self._or_brought(data_iter) if self.data_iterator is None else data_iter
            self._refuse_without_data(data_iter)
            if run.adapt is not None:
                run.adapt.begins(self.global_steps)
            with self._whole_or_failed(f"step {self.global_steps + 1}"):  # it may fail on this rank alone
                self.module.follow()
            assert run.first_step is not None
            run.first_step.begin()
            run.same_data.begin(data_iter)
        data_iter = run.random_numbers.before_step(data_iter)
        with (
            self._whole_or_failed(f"step {self.global_steps + 1}"),
            run.memory.step(self.global_steps + 1) if run.memory else nullcontext(),
        ):
            loss = super().train_batch(*[data_iter][: given or data_iter is not None])
        if run.speedup is not None and not run.speedup.over:
            get_accelerator().synchronize()
        seconds = time.perf_counter() - begin
        if run.trace is not None:
            run.trace.step(seconds, run.executor)
        if run.adapt is not None:
            self._follow_order(run.adapt.step(run.program, run.executor, self.global_steps))
        if run.drift is not None:
            run.drift.step(run.program, run.executor, self.global_steps)
        if run.speedup is not None:
            run.speedup.step(seconds)
        if self._steps_here == 1:
            self._tell_what_ran_whole()
            self._tell_of_first_step()
        run.random_numbers.after_step()
        return loss

    def eval_batch(self, *args, **kwargs):
        self._refuse_failed("eval_batch()")
        begin = time.perf_counter()
        run = self._ostinato
        run.evaluations += 1
        # DeepSpeed's torch.no_grad() stays in effect; transfers read versions of tensors.
        with (
            run.outside.call("eval_batch()"),
            torch.inference_mode(False),
            run.random_numbers.evaluation(),
            evaluation(),
        ):
            result = super().eval_batch(*args, **kwargs)
        if run.trace is not None and not run.trains and run.forwards.whole is not None:
            run.trace.step(time.perf_counter() - begin, run.forwards.whole)
        return result

    @contextmanager
    def _whole_or_failed(self, what: str) -> Iterator[None]:
        """Around what must not end half-way: it would leave gradients of some micro-batches, and transfers
        that no rank receives."""
        try:
            yield
        except BaseException as error:
            self._ostinato.failed = f"{what} failed on this rank ({type(error).__name__})"
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                self._ostinato.watch.tell_of(error)
            raise

    def _refuse_failed(self, what: str) -> None:
        """Raises where the script caught an error and goes on: ranks may be at different micro-batches, and
        transfers would not match."""
        if failed := self._ostinato.failed:
            raise OstinatoError(
                f"{what}: {failed}, and ranks have been out of step since: end the run, and resume it from its last checkpoint"
            )

    def _tell_of_first_step(self) -> None:
        """Says what only the first step shows. All ranks must call it."""
        run = self._ostinato
        for said in run.same_data.end(run.random_numbers.follows):
            put(f"ostinato: rank {self.global_rank}: {said}")
        assert run.first_step is not None
        shown = run.first_step.end(planned_in_steps=run.step_plans is not None)
        run.first_step = None
        if not run.keeps_bits or run.was_equal:
            shown = shown._replace(rounding=())
        if run.compared is not None:
            run.compared.shown = shown
            return
        for line in shown.lines():
            announce.say(line)

    def _tell_what_ran_whole(self) -> None:
        """Says which backwards could not be split: a layer may checkpoint by itself, which only a backward shows."""
        run = self._ostinato
        assert run.executor is not None
        names = [
            run.program.stages[s].name
            for s in run.executor.unsplit_stages
            if run.stages[s].rank == self.stage_id
        ]
        if names and self.grid.get_data_parallel_rank() == 0:
            put(announce.ran_whole(self.global_rank, names))

    def _exec_schedule(self, pipe_schedule):
        self.fwd_outputs = []
        run = self._ostinato
        refusals.refuse_passes(self)
        # The script may have replaced passes of this engine since it was made.
        refusals.check_allowed(run.program, run.stages, of_classes(self.module, self))
        evaluates = refusals.evaluates(pipe_schedule)
        run.random_numbers.prepare(evaluates)
        self.module.follow()
        if not evaluates:
            self._follow_thawed()
        if not self._crosses_as_in_1f1b:
            self._crosses_as_in_1f1b = True
            cross_as_in_1f1b(run.stock_parts, self.module.layers_here())
        batches = pipe_schedule.micro_batches if evaluates else self.micro_batches
        self._reserve_pipe_buffers(batches)
        here = [stage for stage in run.stages if stage.rank == self.stage_id]
        run.step = StepState()
        run.step.batches = Batches(self, batches, here, plans.copies_of(run.stages))
        self.module.whole_logits = not self._compute_loss
        self._steps_here += not evaluates
        if run.step_plans is not None and not evaluates:
            self._plan_step(batches)
        if evaluates:
            run.forwards.refuse_without_data()
        run.random_numbers.begin(batches)
        self._run_stages(evaluates, batches)
        run.batches_before += batches
        if not evaluates:
            self._end_step(pipe_schedule)

    def _follow_thawed(self) -> None:
        """Of layers that learn from this step on. All ranks must call it."""
        run = self._ostinato
        if not run.thawed.seen():
            return
        refusals.check_trained(self.module, run.stages, run.program)
        self._change_shapes()
        run.thawed.seen()

    def _run_stages(self, evaluates: bool, batches: int) -> None:
        """The part of a step, or of an evaluation, that the executor runs."""
        run, whole = self._ostinato, False
        try:
            if evaluates:
                with self._whole_or_failed("an evaluation"):
                    run.forwards.run(batches)
            elif run.copies is not None and self._steps_here == 1:
                with watched_buffers(self.module, run.group):
                    self.ostinato_run(run.executor)
            else:
                self.ostinato_run(run.executor)
            whole = True
        finally:
            step, run.step = run.step, StepState()
            self._running_engine_backward = False
            self.module.show_all()
            if not evaluates:  # a subclass may report from it
                self.fwd_outputs = [step.losses[batch] for batch in sorted(step.losses)]
            run.random_numbers.end(whole)

    def _end_step(self, pipe_schedule) -> None:
        """What follows the last backward: sums of gradients, and DeepSpeed's own instructions."""
        run = self._ostinato
        if run.copies is not None:
            with run.outside.both_directions():
                run.copies.add_gradients(self)
        if run.memory is not None:
            run.memory.note()
        if run.tied_sums is not None:
            run.tied_sums.add()
        if not run.after_plan:  # the schedule is read once
            run.after_plan = [
                c for commands in pipe_schedule for c in commands if not isinstance(c, refusals.EXECUTED)
            ]
        for command in run.after_plan:
            with run.outside.command(command):
                self._INSTRUCTION_MAP[type(command)](self, **command.kwargs)

    def ostinato_run(self, executor, what: str = "") -> None:
        """Runs all instructions of this rank; an error gets a note of where it came from. `what`: "evaluation 3";
        "": the step."""
        run = self._ostinato
        what = what or f"step {self.global_steps + 1}"
        run.running = executor
        if run.lost:
            executor.abandon(run.lost)
        try:
            executor.run(what)
        except Exception as error:
            if isinstance(error, plans.compiled().ExecutionError):  # a peer is late or gone
                run.watch.give_up(str(error), aloud=isinstance(error, plans.compiled().StepTimeout))
            elif not isinstance(error, StopIteration):  # which is how scripts end
                run.watch.tell_of(error)
            error.add_note(
                f"ostinato: rank {self.global_rank} (pipeline rank {self.stage_id}), {what}, "
                f"plan {run.program.plan_sha256[:12]}"
            )
            moved = announce.places(run.stages, run.stock_parts)
            if self._steps_here <= 1 and moved and not isinstance(error, OstinatoError):
                alone = run.compared is not None if executor is run.executor else None
                error.add_note(announce.first_step_failed(moved, alone))
            raise
        run.running = None

    def _position(self) -> Position:
        """The watch's thread calls it."""
        run = self._ostinato
        if not hasattr(run, "outside"):  # the watch begins before it
            return Position("has not begun")
        running = run.running  # which may end meanwhile
        if part := run.outside.part():
            return part
        if running is not None:
            return run.outside.in_the_script(Position(*running.position()))
        between = f"{run.outside.where()}, between steps" if run.batches_before else "has not begun"
        return run.outside.whole() or run.outside.in_the_script(Position(between))

    def _aggregate_total_loss(self):
        stages = self.num_stages
        with self._ostinato.outside.losses():
            if self._ostinato.copies is not None:
                add_losses(self, self._loss_ranks())
            self.num_stages = self._loss_ranks()[0] + 1  # DeepSpeed 0.19.7: the last one has the loss
            try:
                return super()._aggregate_total_loss()
            finally:
                self.num_stages = stages

    def _bcast_pipe_scalar(self, data, src_rank=None, dtype=torch.float32):
        return super()._bcast_pipe_scalar(
            data, self._loss_stage_global_rank() if src_rank is None else src_rank, dtype
        )

    def clip_fp32_gradients(self):
        run = self._ostinato
        if run.stock_names is None:
            super().clip_fp32_gradients()
            return
        if not run.told_of_clipping and not is_deepspeeds(super().clip_fp32_gradients):
            run.told_of_clipping = True
            announce.say(announce.CLIPPING)
        clip_as_partitioned(self, run.stock_names)

    def _take_model_step(self, *args, **kwargs) -> None:
        names = self._ostinato.stock_names
        counted = counted_as_partitioned(self, names) if names else nullcontext()
        with counted, over_all_groups(self, self._ostinato.dropped_groups):
            super()._take_model_step(*args, **kwargs)

    def reset_activation_shape(self):
        """Shapes change from here on (curriculum learning): a new executor announces them again."""
        super().reset_activation_shape()
        run = self._ostinato
        run.forwards.forget_shapes()
        run.random_numbers.forget_shapes()
        self._change_shapes()

    def _change_shapes(self) -> None:
        run = self._ostinato
        if run.speedup is not None and self._steps_here:
            run.speedup.over = True
        run.executor = self._training_executor() if run.trains else None

    def compile(self, *args, **kwargs):
        """Compiles layers one by one. All ranks must call it: afterwards a stage's backward may no longer be
        split."""
        super().compile(*args, **kwargs)
        run = self._ostinato
        run.executor = self._training_executor() if run.trains else None

    def __del__(self):
        """Ranks collect an engine at different times, and connections of accelerators end on all ranks at once: they
        stay."""
        with suppress(Exception):
            self._end(keep_groups=getattr(getattr(self, "device", None), "type", "cpu") != "cpu")

    def destroy(self):
        """Also ends the threads and connections of ostinato's process groups. DeepSpeed keeps its own groups."""
        self._end(keep_groups=False)

    def _end(self, keep_groups: bool) -> None:
        """Once more when an engine that was destroyed is collected."""
        run = self._ostinato
        if not run.ready:
            super().destroy()
            return
        run.watch.close()
        for follows in (run.trace, run.adapt):
            if follows is not None:
                follows.close()
        super().destroy()
        run.executor = run.running = None  # which hold them, too
        run.forwards.forget_shapes()  # its executors hold it
        del run.forwards
        # Without the directions in which nothing goes, as in plans of forwards only: None would end all groups.
        ending = () if keep_groups else (run.group, *chain.from_iterable(run.links.values()))
        for group in filter(None, ending):
            with suppress(ValueError, AssertionError):  # the script has ended all groups already
                dist.destroy_process_group(group)
        run.links, run.group = {}, None
