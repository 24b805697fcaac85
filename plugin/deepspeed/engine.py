# SPDX-License-Identifier: Apache-2.0
"""PipelineEngine whose training schedule is a plan.

The executor runs forwards, backwards and transfers; everything else is DeepSpeed's: the forward pass of a stage with
its loss, the data iterator, loss scaling, reduction of gradients, the optimizer step, timers, monitors, checkpoints.
The engine's class is changed when it is made; DeepSpeed's own class stays as it is.
"""

import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, count

import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.utils import register_output_backward_hooks
from ostinato.nn import Shard, ShardedLogits
from ostinato.ranks.groups import Links, link_groups
from ostinato.ranks.presence import Presence
from ostinato.ranks.watch import Watch
from torch.distributed.distributed_c10d import _get_default_store

from . import announce, checkpoint, plans, universal
from .batches import Batches
from .claims import Claim
from .clipping import clip_as_partitioned
from .config import Paths, Section
from .copies import Copies, add_losses, watched_state
from .equality import Equality
from .errors import OstinatoError
from .evaluation import Forwards
from .idle import learn_nothing
from .outside import Outside
from .plans import Stage
from .sharding import Courier, couriers_of
from .step_memory import StepMemory
from .trace import Trace

# What the executor runs instead of DeepSpeed; the rest of a training schedule (reductions, the step) stays DeepSpeed's.
EXECUTED = (
    schedule.LoadMicroBatch,
    schedule.ForwardPass,
    schedule.BackwardPass,
    schedule.SendActivation,
    schedule.RecvActivation,
    schedule.SendGrad,
    schedule.RecvGrad,
)


_engines = count()  # every rank makes its engines in the same order


class Nothing:
    """Stands for None among the inputs of a stage, each of which DeepSpeed's forward pass clones."""

    def clone(self) -> None:
        return None


NOTHING = Nothing()

# Goes with the tensor of a tuple of one, which is something else to a layer than the tensor itself.
ALONE = torch.empty(0, 1, 0, 3, dtype=torch.uint8)


def _is_mark(value) -> bool:
    return torch.is_tensor(value) and value.shape == ALONE.shape and value.dtype == ALONE.dtype


@dataclass
class Run:
    """The plan of one engine."""

    program: object
    stages: list[Stage]  # all stages, in model order
    stock_parts: list[int]  # DeepSpeed's own partition of the model
    stock_names: list[list[str]] | None  # parameters of each pipeline rank in it; None where the plan's is the same
    section: Section
    paths: Paths
    shards: dict[int, Shard]  # this rank's place in sharded stages, by layer
    parts: list[universal.Part]  # the parameters of which this rank holds a part
    copies: Copies | None = None  # the weights that several ranks hold; None where the plan runs in one direction
    idle: torch.nn.Parameter | None = None  # where this rank has nothing to train
    couriers: dict[tuple[int, str], Courier] = field(default_factory=dict)  # by stage and DeepSpeed's name of the buffer
    group: object = None  # process group of this pipeline, for the executors alone
    links: Links = field(default_factory=dict)  # groups of two ranks for its transfers
    executor: object = None  # of training; None where the plan holds forwards only
    forwards: Forwards | None = None  # of evaluation
    equality: Equality | None = None  # how its numbers relate to 1F1B's
    working: object = None  # the executor that ran last, or runs
    watch: Watch | None = None
    outside: Outside | None = None
    trace: Trace | None = None
    memory: StepMemory | None = None
    active: Stage | None = None  # the stage whose forward or backward runs
    batches: Batches | None = None  # of this step
    batches_before: int = 0  # this step: of all steps and evaluations
    loading: bool = False  # a batch is being read
    rest: list = field(default_factory=list)  # DeepSpeed's instructions after the last backward

    @property
    def trains(self) -> bool:
        return plans.trains(self.program)

    @property
    def ready(self) -> bool:
        """The engine's __init__ is over."""
        return self.group is not None


def _taken(stage: Stage, given, made: tuple | None):
    """What a stage that reads data runs on: all inputs of the batch, or those that it takes and what other stages made."""
    if stage.takes is None:
        return given
    given = given if isinstance(given, tuple) else (given,)
    values = (*(given[i] for i in stage.takes), *(made or ()))
    return values if len(values) > 1 else values[0]


def become_plan_engine(engine, run: Run) -> None:
    """Before __init__ of the engine has run."""
    kind = type(engine)
    engine.__class__ = type(kind.__name__, (PlanEngine, kind), {"__module__": kind.__module__})
    engine.__dict__["_ostinato"] = run


class PlanEngine:
    """Mixed in before PipelineEngine."""

    _steps_here = 0  # training steps of this engine; global_steps counts on from a checkpoint

    def ostinato_begin(self, claim: Claim) -> Claim:
        """After __init__: makes the executors and hands them this rank's stages. All ranks must call it. Returns what is known now."""
        run = self._ostinato
        run.group, run.links = self._own_groups()
        run.equality = Equality(self, claim, run.stages)
        run.couriers = couriers_of(run.stages, run.shards, self.device)
        run.forwards = Forwards(self, self._make_executor)
        run.executor = self._training_executor() if run.trains else None
        run.outside = Outside(self, *self._watched(), run.section.timeout_s)
        if run.paths.trace is not None:
            run.trace = Trace(run.paths.trace, run.program, self.global_rank, self.stage_id)
        if run.paths.memory is not None:
            run.memory = StepMemory(run.paths.memory, self.global_rank, self)
        return run.equality.claim

    def _watched(self) -> tuple[Watch, Presence]:
        """Over this pipeline, and over all ranks, which a checkpoint waits for."""
        run, store, engine = self._ostinato, _get_default_store(), f"engine {next(_engines)}"
        period_s = min(1.0, run.section.timeout_s / 4)
        presence = Presence(store, engine, self.global_rank, dist.get_world_size(), period_s)
        name = f"{engine}, pipeline of rank {self.grid.pp_group[0]}"
        run.watch = Watch(store, name, self.stage_id, len(self.grid.pp_group), self._position, period_s, presence)
        return run.watch, presence

    def _make_executor(self, program, dynamic_shapes: bool):
        """For this rank; its stages are still to be set."""
        run = self._ostinato
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
        )

    def _training_executor(self):
        run = self._ostinato
        executor = self._make_executor(run.program, self.module.dynamic_shape)
        for stage in run.stages:
            if stage.on(self.stage_id):
                executor.set_stage(
                    stage.index,
                    lambda micro_batch, inputs, c=stage: self._train_forward(c, micro_batch, inputs),
                    before_backward=lambda micro_batch, part, c=stage: self._before_backward(c, micro_batch, part),
                    after_backward=lambda micro_batch, part: self._after_backward(part),
                    may_split=self.module.may_split(stage),
                    one_by_one=run.equality.one_by_one(stage),
                )
        return executor

    def _own_groups(self):
        """A group whose traffic nobody shares, and those of its links, for each of the pipelines."""
        program = self._ostinato.program
        for ranks in self.grid.pipe_groups:
            group = dist.new_group(ranks)
            links = link_groups(program.links, ranks, None, self.device)
            if self.global_rank in ranks:
                mine = group, links
        return mine

    # ---- where DeepSpeed asks for the first or the last stage, it means the ranks that read inputs, and the one that reports
    # the loss; while a batch is read, those that read labels; while a stage runs, that stage

    def is_first_stage(self):
        run = self._ostinato
        if not run.ready:
            return super().is_first_stage()
        return any(stage.reads and stage.rank == self.stage_id for stage in run.stages)

    def is_last_stage(self):
        run = self._ostinato
        if not run.ready:  # __init__ tries its neighbours out, in the order of the ranks
            return super().is_last_stage()
        if run.active is not None:
            return run.active.ends
        ranks = self._loss_ranks()
        return self.stage_id in ranks if run.loading else self.stage_id == ranks[0]

    def _loss_ranks(self) -> list[int]:
        """Pipeline ranks that compute losses; the first reports them all."""
        return [stage.rank for stage in self._ostinato.stages if stage.ends]

    def _loss_stage_global_rank(self):
        return self.grid.stage_to_global(self._loss_ranks()[0])

    def set_dataloader(self, loader):
        if self._reads_data():
            self.training_dataloader = loader
            self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator):
        if self._reads_data():
            self.training_dataloader = None
            self.data_iterator = iterator

    def _reads_data(self) -> bool:
        return any(c.rank == self.stage_id and (c.reads or c.ends) for c in self._ostinato.stages)

    # ---- a step

    def train_batch(self, data_iter=None):
        if not self._ostinato.trains:
            raise OstinatoError(
                "train_batch(): the plan holds forwards only, for eval_batch(); to train, search one for a placement with "
                "backward blocks"
            )
        begin = time.perf_counter()
        run = self._ostinato
        if not self._steps_here:
            data_iter = run.equality.before_step(data_iter)
        with run.memory.step(self.global_steps + 1) if run.memory else nullcontext():
            loss = super().train_batch(data_iter)
        if run.trace is not None:
            run.trace.step(time.perf_counter() - begin, run.executor)
        if self._steps_here == 1:
            self._tell_what_ran_whole()
        run.equality.after_step(self._steps_here)
        return loss

    def eval_batch(self, *args, **kwargs):
        begin = time.perf_counter()
        run = self._ostinato
        with run.equality.evaluation():
            result = super().eval_batch(*args, **kwargs)
        if run.trace is not None and not run.trains and run.forwards.whole is not None:
            run.trace.step(time.perf_counter() - begin, run.forwards.whole)
        return result

    def _tell_what_ran_whole(self) -> None:
        """A layer may checkpoint by itself, which only a backward shows."""
        run = self._ostinato
        names = [run.program.stages[s].name for s in run.executor.unsplit_stages if run.stages[s].rank == self.stage_id]
        if names and self.grid.get_data_parallel_rank() == 0:
            print(announce.ran_whole(self.global_rank, names), flush=True)

    def _exec_schedule(self, pipe_schedule):
        self.fwd_outputs = []
        run = self._ostinato
        evaluates = isinstance(pipe_schedule, schedule.InferenceSchedule)
        run.equality.prepare(evaluates)
        batches = pipe_schedule.micro_batches if evaluates else self.micro_batches
        self._reserve_pipe_buffers(batches)
        run.batches = Batches(self, [c for c in run.stages if c.rank == self.stage_id], plans.copies_of(run.stages))
        self.module.whole_logits = not self._compute_loss
        self._steps_here += not evaluates
        run.equality.begin(batches)
        whole = False
        try:
            if evaluates:
                run.forwards.run(batches)
            elif run.copies is not None and self._steps_here == 1:
                with watched_state(self.module, run.group) as changed:
                    self.ostinato_run(run.executor)
                if changed and self.global_rank == 0:
                    print(announce.each_its_own(changed), flush=True)
            else:
                self.ostinato_run(run.executor)
            whole = True
        finally:
            run.active = None
            self._running_engine_backward = False
            self.module.show_all()
            run.equality.end(whole)
        run.batches_before += batches
        if not evaluates:
            if run.copies is not None:
                with run.outside.both_directions():
                    run.copies.add_gradients(self)
            if run.memory is not None:
                run.memory.note()
            for command in self._after_the_plan(pipe_schedule):
                with run.outside.command(command):
                    self._INSTRUCTION_MAP[type(command)](self, **command.kwargs)

    def read_first_batch(self) -> None:
        """Of the step or evaluation that begins."""
        with self._reading():
            self._ostinato.batches.read_first()

    def ostinato_run(self, executor) -> None:
        """Runs all instructions of this rank; an error says where it came from."""
        run = self._ostinato
        run.working = executor
        try:
            executor.run()
        except Exception as error:
            error.add_note(
                f"ostinato: rank {self.global_rank} (pipeline rank {self.stage_id}), step {self.global_steps + 1}, "
                f"plan {run.program.plan_sha256[:12]}"
            )
            if isinstance(error, plans.compiled().StepTimeout):
                run.watch.give_up(str(error))
            raise

    def _position(self) -> str:
        run = self._ostinato
        outside = run.outside.position() if run.outside is not None else ""
        return outside or ("has not begun" if run.working is None else run.working.position())

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
        return super()._bcast_pipe_scalar(data, self._loss_stage_global_rank() if src_rank is None else src_rank, dtype)

    def _after_the_plan(self, pipe_schedule) -> list:
        """DeepSpeed's instructions that follow the last backward. Its schedule is read once."""
        run = self._ostinato
        if not run.rest:
            run.rest = [c for commands in pipe_schedule for c in commands if not isinstance(c, EXECUTED)]
        return run.rest

    def _train_forward(self, stage: Stage, micro_batch: int, inputs: tuple | None):
        """What the executor calls: the outputs of a stage, or the scaled loss."""
        run = self._ostinato
        copies, name = plans.copies_of(run.stages), run.program.stages[stage.index].name
        run.equality.received(stage, inputs)
        with run.memory.forward(name) if run.memory else nullcontext():
            outputs = self.forward_stage(stage, copies * micro_batch + stage.copy, inputs)
        if not stage.ends:
            run.equality.handed_on(stage, outputs)
            return outputs
        loss = self.scale(self.loss / self.gradient_accumulation_steps())
        self.loss = self.loss.detach()  # the executor frees the graph when the backward is done
        self.fwd_outputs.clear()  # evaluation reads it; a loss may hold as much memory as the logits that it was reduced from
        return loss

    def forward_stage(self, stage: Stage, batch: int, inputs: tuple | None):
        """DeepSpeed's forward pass of one stage on one batch. `inputs`: what the stages before it made; None where there is none."""
        run, buffers = self._ostinato, self.pipe_buffers
        if stage.reads:
            inputs = _taken(stage, self._read(stage, batch, "inputs"), inputs)
        elif len(inputs) == 1:
            inputs = inputs[0]
        elif len(inputs) == 2 and _is_mark(inputs[1]):
            inputs = inputs[:1]
        elif any(tensor is None for tensor in inputs):
            inputs = tuple(NOTHING if tensor is None else tensor for tensor in inputs)
        labels = self._read(stage, batch, "labels") if stage.ends else None  # reading goes through these buffers
        buffers["inputs"][batch], buffers["labels"][batch] = inputs, labels
        run.active = stage
        self.module.show(stage)
        self.module.micro_offset = run.batches_before + batch  # it seeds the layers of a micro-batch where seed_layers is on
        with run.equality.forward(batch):
            self._exec_forward_pass(batch)
        run.active = None
        outputs = buffers["outputs"][batch]
        if isinstance(outputs, ShardedLogits):
            self._follow(outputs)
        buffers["inputs"][batch] = buffers["outputs"][batch] = buffers["labels"][batch] = None
        alone = not stage.ends and isinstance(outputs, tuple) and len(outputs) == 1
        return (*outputs, ALONE.to(outputs[0].device)) if alone else outputs

    def _read(self, stage: Stage, batch: int, name: str):
        """The "inputs" or "labels" of a batch; the first rank of a sharded stage reads them for the others."""
        run, value = self._ostinato, None
        if stage.rank == self.stage_id:
            with self._reading():
                value = run.batches.take(batch, name)
        courier = run.couriers.get((stage.index, name))
        return value if courier is None else courier.share(value)

    @contextmanager
    def _reading(self):
        """Around what DeepSpeed's code reads; what a loader draws there is no layer's."""
        run = self._ostinato
        run.loading = True
        with run.equality.reading():
            yield
        run.loading = False

    def _reentrant_activation_checkpointing(self):
        """Asked while a batch is read, with the stage that ran last still shown."""
        interval, function = self.module.own_checkpointing
        return interval > 0 and function is not non_reentrant_checkpoint

    def _follow(self, logits: ShardedLogits) -> None:
        """What DeepSpeed does with outputs that are tensors: its hooks on their way back, and logits for evaluation."""
        register_output_backward_hooks(logits.part, self._backward_prologue, self._backward_prologue_per_tensor)
        if self.eval_return_logits:
            self.outputs = logits.whole()

    def _before_backward(self, stage: Stage, micro_batch: int, part: str) -> None:
        """Recomputation reads the stage's layers; DeepSpeed's hooks on gradients ask who runs the backward. `part`: "B" (all of
        it), "I" or "W". DeepSpeed prepares for gradients of weights (bf16: clears the last ones) where they come.
        """
        run = self._ostinato
        run.active = stage
        self.module.show(stage)
        batch = plans.copies_of(run.stages) * micro_batch + stage.copy
        run.equality.before_backward(stage, batch, first=self._steps_here == 1 and micro_batch == 0 and part != "W")
        self._running_engine_backward = True
        if part == "I":
            self._start_timers(self.engine_timers.backward_timers)
        else:
            super()._backward_prologue()
            if run.idle is not None:
                learn_nothing(run.idle)

    def _after_backward(self, part: str) -> None:
        """What DeepSpeedEngine.backward() does once the gradients are there (bf16: adds them to their fp32 sums)."""
        if part == "I":
            self._stop_timers(self.engine_timers.backward_timers)
        else:
            self._backward_epilogue()
        self._running_engine_backward = False
        self._ostinato.equality.after_backward()
        self._ostinato.active = None

    def _backward_prologue(self):
        """DeepSpeed calls it from a hook on the outputs, which of a split backward only the first half passes."""

    def _backward_prologue_per_tensor(self, grad):
        """The loss was divided by the accumulation steps before the backward."""
        return grad

    def clip_fp32_gradients(self):
        names = self._ostinato.stock_names
        if names is None:
            super().clip_fp32_gradients()
        else:
            clip_as_partitioned(self, names)

    def _exec_backward_pass(self, buffer_id):
        raise OstinatoError("a backward outside the plan")

    def reset_activation_shape(self):
        """Shapes change from here on (curriculum learning, say): a new executor announces them anew."""
        super().reset_activation_shape()
        run = self._ostinato
        run.forwards.forget_shapes()
        run.executor = self._training_executor() if run.trains else None

    def compile(self, *args, **kwargs):
        """Layers are compiled one by one. All ranks must call it: a stage may have become one that cannot be split."""
        super().compile(*args, **kwargs)
        run = self._ostinato
        run.executor = self._training_executor() if run.trains else None

    # ---- what a plan fixes

    def set_train_batch_size(self, train_batch_size):
        before = self.train_batch_size()
        if train_batch_size != before:
            raise OstinatoError(
                f"set_train_batch_size({train_batch_size}): the plan is for {self.micro_batches} micro-batches a step "
                f"({before} samples): search a plan for the other size and make a new engine"
            )

    def save_checkpoint(self, save_dir, tag=None, *args, **kwargs):
        tag = str(f"global_step{self.global_steps}" if tag is None else tag)
        if self.global_rank == 0 and save_dir:
            checkpoint.write(save_dir, tag, self._ostinato.stages)
        with self._ostinato.outside.checkpoint("saving a checkpoint"):
            return super().save_checkpoint(save_dir, tag, *args, **kwargs)

    def _save_zero_checkpoint(self, save_path, tag):
        with universal.wholes_saved(self, self._ostinato.parts):
            super()._save_zero_checkpoint(save_path, tag)

    def _get_zero_param_shapes(self):
        """By group, of whole parameters."""
        whole = universal.whole_shapes(self, self._ostinato.parts)
        groups = super()._get_zero_param_shapes()
        return [type(group)((name, whole.get(name, shape)) for name, shape in group.items()) for group in groups]

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True, *args, **kwargs):
        module_only = kwargs.get("load_module_only", args[1] if len(args) > 1 else False)
        if load_optimizer_states and not module_only and not self.load_universal_checkpoint():
            checkpoint.check(load_dir, tag, self._ostinato)
        with self._ostinato.outside.checkpoint("loading a checkpoint"):
            loaded = super().load_checkpoint(load_dir, tag, load_module_strict, load_optimizer_states, *args, **kwargs)
        universal.drop_wholes(self)
        return loaded

    def destroy(self):
        """Also ends the threads and connections of the groups that are ostinato's. DeepSpeed keeps its own, and calls this once more
        when the engine is collected.
        """
        run = self._ostinato
        if not run.ready:
            return super().destroy()
        run.watch.close()
        if run.trace is not None:
            run.trace.close()
        super().destroy()
        run.executor = run.working = run.forwards = None  # which hold them, too
        for group in (run.group, *chain.from_iterable(run.links.values())):
            with suppress(ValueError, AssertionError):  # the script has ended all groups already
                dist.destroy_process_group(group)
        run.links, run.group = {}, None
