# SPDX-License-Identifier: Apache-2.0
"""The first pass: the first steps of a run under DeepSpeed's own unchanged 1F1B, with the run's data and
optimizer.

"check" records what these steps compute (equal.recorder), and runs forwards and backwards of the last step twice more,
to see whether 1F1B repeats itself. "auto" measures layers on the last step, and searches. Then all ranks start
again with the plan (second_start), from the beginning, with the same data: so it does not matter what measuring
has changed.
"""

import statistics
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from ostinato.errors import put
from ostinato.files import Diagnostic, write_text
from ostinato.profile.model.lanes import mark_lanes
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.block_time import count_blocks
from ostinato.profile.machine.device import UndisturbedCpu, device_at
from ostinato.profile.machine.transfers import measure_kinds
from ostinato.profile.measure.optimizer import StepClock
from ostinato.profile.measure.rows import mark_tied, rank_cost, set_zero
from ostinato.profile.measure.samples import Samples
from ostinato.profile.model.model_digest import digest_of_layers
from ostinato.profile.model.outputs import of_outputs
from ostinato.profile.model.shared import held_again
from ostinato.profile.settings import Settings, read_settings
from ostinato.ranks import cores
from ostinato.groups import everyones
from ostinato.ranks.presence import ranks_in_words
from ostinato.ranks.starting import starting
from ostinato.restrictions import Restriction, experts_in, of_classes

from ostinato import _profiler

from . import second_start
from ..save import checkpoint, optimizer_state
from ..section.refusals import evaluates, own_pass
from ..section import plans
from ..section.kept import PROFILE
from ..equal.recorder import Recorder
from ..errors import NoPlan, OstinatoError, Unsupported
from ..graph_model import is_graph, layers_read
from ..data.items import again, making_once, own
from .loss_reads import LossReads, refuse_apart
from .layer_costs import REPEATS, WARM_UP, MeasuredLayer, chosen_of, measure, rows_by_size
from ..place.experts import spread_experts
from ..place.tied import Holders, by_layer, fixed_layers, holders_of
from ..place.placing import Prepared
from ..randomness.random_state import Drawing
from ..tell.announce import say
from ..data.sizes import Seen, agreed, seen_by, size_function
from ..upstream import Config, Engine, Model, stock_parts

# DeepSpeed's own steps that are timed: fewer where they take long.
STEPS, LEAST_STEPS, ENOUGH_S = 5, 2, 15.0
THEN = {
    True: "ostinato measures the layers, searches a plan, and the run starts again with it",
    "measure": "ostinato measures the layers, searches a plan, and the run ends",
    "profile": "ostinato measures the layers, and the run ends",
}
UPDATES = (schedule.ReduceGrads, schedule.ReduceTiedGrads, schedule.OptimizerStep)

FROZEN_INPUTS = (
    "ostinato: this is DeepSpeed's own step. Re-entrant activation checkpointing (the default) passes no gradient to a layer whose inputs need none, as "
    'after a frozen layer or at the first one: set "pipeline": {"use_reentrant": false} in the configuration (gradient_checkpointing_enable() of '
    'transformers: {"use_reentrant": False}), or let the inputs need one (enable_input_require_grads())'
)

# (prepared, model, configuration, class of the engine): puts a plan into `prepared`, on every rank
Search = Callable[[Prepared, Model, Config, type], None]


def begin(
    engine: Engine, original_init: Drawing, prepared: Prepared, search: Search, args: tuple, kwargs: dict
) -> None:
    """Makes DeepSpeed's own engine, and watches its first steps. All ranks must call it."""
    _refuse_idle(kwargs)
    second_start.keep(prepared, kwargs["model"], original_init.states)
    original_init(engine, *args, **kwargs)
    vars(engine)["_ostinato_first"] = FirstPass(
        engine, prepared, partial(search, prepared, kwargs["model"], kwargs["config_class"], type(engine))
    )


def _refuse_idle(kwargs: dict) -> None:
    """Raises the same error on every rank: DeepSpeed's own engine does not start if a rank has nothing to train."""
    learns = any(parameter.requires_grad for parameter in kwargs["model"].parameters())
    idle = [rank for rank, learning in enumerate(everyones(learns)) if not learning]
    if idle and (kwargs.get("optimizer") or kwargs["config_class"].optimizer_name):
        raise OstinatoError(
            f'cannot run: {ranks_in_words(idle)} {"has" if len(idle) == 1 else "have"} no trainable parameters in DeepSpeed\'s partition, with which "auto" '
            'and "check" start: use "plan" without "check", or "profile"'
        )


def tell_of_frozen_inputs(train_batch: Callable) -> Callable:
    """Adds a hint where re-entrant activation checkpointing has cut the backward: torch only warns that none of the
    inputs need a gradient, and its error names no cause."""

    @wraps(train_batch)
    def told(first: "FirstPass", *args: Any, **kwargs: Any) -> Any:
        try:
            return train_batch(first, *args, **kwargs)
        except RuntimeError as error:
            if "does not require grad" in str(error) and _checkpoints(first._engine.module):
                error.add_note(FROZEN_INPUTS)
            raise

    return told


def _checkpoints(model: Model) -> bool:
    """Whether DeepSpeed does, or a layer of transformers."""
    return model.activation_checkpoint_interval > 0 or any(
        getattr(module, "gradient_checkpointing", False) for module in model.modules()
    )


class FirstPass:
    """Of one engine: replaces its train_batch() until the last of these steps is over."""

    def __init__(self, engine: Engine, prepared: Prepared, search: Callable[[], None]):
        self._engine, self._prepared, self._search = engine, prepared, search
        self._asked = prepared.checked()[0]
        self._left = max(1, self._asked.checks)
        self._recorder = Recorder(engine, self._asked.checks)
        self._train, self._next, self._run = engine.train_batch, engine._next_batch, engine._exec_schedule
        self._reading = False
        self._items: list[Any] = []  # micro-batches of the last step, as batch_fn returned them
        self._times = [0]  # ns to read each
        self._together: list[Restriction] | None = None  # of layers with the loss; None before step 1
        self._loaded: list[tuple[str, str | None]] = []  # checkpoints with optimizer state: (folder, tag)
        vars(engine).update(
            train_batch=self.train_batch, _next_batch=self.next_batch, _exec_schedule=self.exec_schedule
        )
        self._unfinished = weakref.finalize(self, _tell_unfinished, dist.get_rank())
        if dist.get_rank() == 0:
            steps = "step" if self._left == 1 else f"{self._left} steps"
            then = "the run starts again with the plan" if prepared.program else THEN[self._asked.auto]
            put(f"ostinato: running the first {steps} under DeepSpeed's own 1F1B; then {then}")

    @tell_of_frozen_inputs
    def train_batch(self, *args, **kwargs):
        self._reading = self._left == 1
        with LossReads(self._engine.module) if self._together is None else nullcontext() as seen:
            loss = self._train(*args, **kwargs)
        self._together = self._together if seen is None else seen.together()
        self._reading = False
        self._left -= 1
        if self._left == 0:
            self._end()
        return loss

    def next_batch(self):
        begin = time.perf_counter_ns()
        item = self._next()
        if self._reading:
            self._times.append(time.perf_counter_ns() - begin)
            self._items.append(own(item))
        return item

    def exec_schedule(self, pipe_schedule):
        try:
            if why := next(filter(None, everyones(own_pass(self._engine))), ""):
                raise Unsupported(why)
            evaluates(pipe_schedule)
        except Unsupported as error:
            self._unfinished.detach()
            second_start.begin_without(self._prepared, error)
        return self._run(pipe_schedule)

    def loads(self, load_dir: str, tag: str | None) -> AbstractContextManager[None]:
        """Returns a context in which the script loads a checkpoint. Raises OstinatoError on every rank where
        the second start could not load it."""
        self._loaded.append((load_dir, tag))
        self._refuse_loaded()
        return optimizer_state.loading_alone(self._engine, load_dir, tag)

    def _refuse_loaded(self) -> None:
        if self._prepared.program is not None:
            for load_dir, tag in self._loaded:
                held = checkpoint.held_by(plans.stages_of(self._prepared.program))
                checkpoint.found(load_dir, tag, held, self._engine)

    def _end(self) -> None:
        self._unfinished.detach()
        records = self._checked() if self._asked.checks else ""
        differ = (
            self._asked.sizes
            or self._engine.module.dynamic_shape
            or self._engine.curriculum_learning_enabled()
        )
        seconds = [] if differ else self._own_steps()
        together = [*dict.fromkeys(one for of_rank in everyones(self._together or []) for one in of_rank)]
        try:
            if (program := self._prepared.program) is not None:
                refuse_apart(together, plans.stages_of(program))
            else:
                with starting(
                    "measuring, and searching a plan", range(dist.get_world_size()), self._asked.timeout_s
                ):
                    profile = self._measure(seconds, together)
                    if self._asked.auto != "profile":
                        self._search_with(profile)
                if self._asked.auto == "profile":
                    self._end_with(profile)
                self._refuse_loaded()
        except (Unsupported, NoPlan) as error:
            second_start.begin_without(self._prepared, error)
        second_start.begin(self._prepared, records, seconds)

    def _checked(self) -> str:
        """What 1F1B has computed, and how its last step differs when it runs again: the control for what the
        plan computes."""
        with starting("running a step twice", range(dist.get_world_size()), self._asked.timeout_s):
            self._recorder.repeat(lambda: _run_step(self._engine, self._items))
        return self._recorder.all().to_text()

    def _own_steps(self) -> list[float]:
        """Seconds of whole warm steps of DeepSpeed's own engine, on the slowest rank. They use the micro-batches
        of the last step, with the same time to read each. The script sees nothing of these steps, and the
        second start drops what they change."""
        engine, read = self._engine, self._reading_takes() / 1e9
        vars(engine).update(
            lr_scheduler=None,
            steps_per_print=lambda: sys.maxsize,
            _aggregate_total_loss=partial(_aggregated, engine),
        )
        engine.monitor.enabled = False
        seconds: list[float] = []
        while len(seconds) < LEAST_STEPS or (len(seconds) < STEPS and sum(seconds) < ENOUGH_S):
            engine.data_iterator = again(self._items, read)
            get_accelerator().synchronize()
            begin = time.perf_counter()
            with making_once(engine):
                PipelineEngine.train_batch(engine)
            get_accelerator().synchronize()
            seconds.append(max(everyones(time.perf_counter() - begin)))
        return seconds

    def _reading_takes(self) -> int:
        """ns per micro-batch, on this rank. Drops the first, which waits for a loader's prefetching to start."""
        return statistics.median_low(self._times[2:] or self._times)

    def _measure(self, seconds: list[float], together: list[Restriction]) -> str:
        """Rank 0's profile; "" elsewhere."""
        chosen, sizes = _chosen(self._engine, self._items, self._asked.sizes)
        read = max(everyones(self._reading_takes()))
        items = [self._items[i] for i in chosen] if self._items else []
        shares_cores = bool(cores.sharing(self._prepared.places))
        fixed = [one for of_rank in everyones(fixed_layers(self._engine.module)) for one in of_rank]
        seen = [*dict.fromkeys((*together, *spread_experts(self._engine.module), *fixed))]
        return _profile(self._engine, items, len(chosen), sizes, read, shares_cores, seconds, seen)

    def _search_with(self, profile: str) -> None:
        with TemporaryDirectory(prefix="ostinato-") as temporary:
            paths = self._prepared.checked()[1]
            measured = (paths.output or Path(temporary)) / PROFILE
            if profile and not Diagnostic(measured).write(profile):
                measured = Path(temporary) / PROFILE
                measured.write_text(profile)
            self._prepared.paths = paths.model_copy(update={"profile": measured})
            self._search()

    def _end_with(self, profile: str) -> NoReturn:
        """Where the section asks for a profile alone."""
        output = self._prepared.checked()[1].output
        assert output is not None
        try:
            if profile:
                write_text(output / PROFILE, profile)
        except OSError as error:
            raise OstinatoError(f"{output / PROFILE} could not be written: {error.strerror}") from None
        say(f"the profile is in {output / PROFILE}")
        sys.exit(0)


def _tell_unfinished(rank: int) -> None:
    """Called where the engine is gone, or its process ends, before its first steps are over."""
    if rank == 0:
        put(
            "ostinato: the training ended before its first steps under DeepSpeed's own 1F1B were over: no plan has run"
        )


def _chosen(engine: Engine, items: list, named: str | None) -> tuple[list[int], list[float]]:
    """Which micro-batches of the step represent all, the same ones in each pipeline, and their sizes in the
    first; [] where the section has no "sizes". All ranks raise the same error where one has no size.
    """
    if named is None:
        return [0], []
    everyone = everyones(seen_by(size_function(named), items) if items else Seen())
    sizes = [agreed([everyone[rank] for rank in ranks]) for ranks in engine.grid.pipe_groups][0]
    chosen = chosen_of(sizes)
    return chosen, [sizes[i] for i in chosen]


def _aggregated(engine: Engine) -> Any:
    """The loss of a step, which the script's own forward pass may not have summed."""
    if engine.total_loss is None and engine.is_last_stage():
        engine.total_loss = torch.zeros((), device=engine.device)
    return PipelineEngine._aggregate_total_loss(engine)


def _run_step(engine: Engine, items: list) -> None:
    """DeepSpeed's own training schedule, without the instructions that update weights."""
    engine.module.train()
    engine.total_loss, engine._compute_loss = None, True
    engine.data_iterator = again(items)
    steps = schedule.TrainSchedule(engine.micro_batches, engine.num_stages, engine.stage_id)
    engine._reserve_pipe_buffers(steps.num_pipe_buffers())
    engine.fwd_outputs = []
    with making_once(engine):
        for command in (c for commands in steps for c in commands if not isinstance(c, UPDATES)):
            engine._INSTRUCTION_MAP[type(command)](engine, **command.kwargs)


def _profile(
    engine: Engine,
    items: list,
    count: int,
    sizes: list[float],
    read: int,
    shares_cores: bool,
    seconds: list[float],
    seen: list[Restriction],
) -> str:
    """Rank 0 collects the measurements of all ranks into a profile; "" elsewhere. `items`: the `count` chosen;
    `read`: ns to read a batch; `seconds`: of DeepSpeed's own steps; `seen`: what step 1 and the layers have shown."""
    device = device_at(torch.device(engine.device))
    config = engine._config._param_dict
    optimizer = engine.client_optimizer
    on_cpu = device.place.type == "cpu"
    experts = any(everyones(bool(experts_in(engine.module))))
    replicas = 1 if experts else engine.grid.get_data_parallel_world_size()
    settings = read_settings(config, optimizer, not on_cpu, replicas)
    # On an accelerator copies of parameters may not fit beside the model.
    steps = StepClock.of(config, optimizer, settings, device) if on_cpu else None
    measured, error = [], ""
    try:
        measured = measure(
            engine, items, count, UndisturbedCpu() if shares_cores else device, settings, steps
        )
    except ProfileError as said:
        error = str(said)
    everyone = everyones((measured, error))
    if errors := [said for _, said in everyone if said]:
        raise NoPlan(f'"auto" cannot measure the model: {errors[0]}')
    transfers, holders = _transfers(engine, device), holders_of(engine.module)
    if dist.get_rank() != 0:
        return ""
    # The first replica's.
    found = {layer.index: layer for of_rank, _ in reversed(everyone) for layer in of_rank}
    layers = [found[index] for index in sorted(found)]
    profile = _profiler.Profile()
    profile.model = Path(sys.argv[0]).stem or "model"
    profile.set_device(kind=device.kind, torch=torch.__version__, **device.description())
    profile.timer = "cpu" if on_cpu else "device-events"
    profile.warm_up, profile.repeats = WARM_UP, REPEATS
    profile.micro_batch_size = engine.train_micro_batch_size_per_gpu()
    profile.slices = max(1, engine.module.topology().get_dim("model"))
    profile.layers = _rows(layers, engine.module._layer_specs, settings, holders)
    if sizes and all(size == int(size) for size in sizes):
        profile.tokens = int(sizes[0])
        profile.sizes = [_profiler.SizeCost(*row) for row in rows_by_size(sizes, layers)] if sizes[1:] else []
    own_stages = [end - begin for begin, end in pairwise(stock_parts(engine.module))]
    staying = of_outputs({layer.index: layer.stays for layer in layers[:-1]}, own_stages)
    profile.restrictions = [one.row for one in (*of_classes(engine.module, engine), *seen, *staying)]
    profile.set_run(
        own_stages, engine.micro_batches, _profiler.spread_of([round(second * 1e9) for second in seconds])
    )
    profile.model_sha256 = digest_of_layers(row.digest for row in profile.layers)
    profile.transfers = transfers
    profile.completeness.complete = True
    set_zero(profile, settings, experts)
    profile.rank = _rank_cost(settings, device, profile.layers, read, [layer.samples for layer in layers])
    return profile.json()


def _transfers(engine: Engine, device: Any) -> list[Any]:
    """Between the ranks of the first pipeline; [] where no wire reaches this kind of device."""
    if device.place.type not in ("cpu", "cuda"):
        return []
    return measure_kinds(engine.grid.pipe_groups[0], device)


def _rank_cost(settings, device: Any, rows: list, read: int, samples: list[Samples]) -> Any:
    cost = rank_cost(settings, read, samples) if device.place.type == "cpu" else rank_cost(settings)
    try:
        count_blocks(cost, rows, device)
    except ProfileError as error:
        put(f"ostinato: auto: the profile lacks what a block costs on top of its layers: {error}")
    return cost


def _rows(layers: list[MeasuredLayer], specs: list, settings: Settings, holders: Holders) -> list[Any]:
    """The layers as a profile's rows; for a model with branches, with what each layer reads."""
    rows = [layer.row() for layer in layers]
    if is_graph(specs):
        for row, reads in zip(rows, layers_read(specs), strict=True):
            row.after = [_profiler.LayerInput(source, layers[source].output_bytes) for source in reads]
    again = held_again(by_layer(holders, len(specs)))
    return mark_lanes(mark_tied(rows, specs, again, settings), specs)
