# SPDX-License-Identifier: Apache-2.0
"""`"auto": true`: measure, search, switch, all inside the first train_batch().

The engine begins as DeepSpeed's own. The first train_batch() runs the micro-batches of its step several times under DeepSpeed's 1F1B
with a clock at every layer, drops the gradients, searches a plan for what was measured, and becomes a PlanEngine.
Then the step runs, under the plan, with the same data. Nothing was updated by then: weights, buffers, random states and what else
forwards change in layers are as initialize() and the script left them, so every loss is what the same plan gives from the start.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.block_time import count_blocks
from ostinato.profile.machine.device import UndisturbedCpu, host_timed
from ostinato.profile.measure.optimizer import StepClock
from ostinato.profile.measure.rows import rank_cost
from ostinato.profile.measure.samples import Samples, rounds
from ostinato.profile.model.model_digest import digest_of_layers
from ostinato.profile.settings import read_settings
from ostinato.ranks.groups import everyones
from ostinato.ranks.presence import ranks_in_words
from ostinato.ranks.starting import starting

from ostinato import _profiler

from . import announce
from .config import Section
from .engine import PlanEngine
from .errors import OstinatoError
from .forward_state import ForwardState
from .graph_model import is_graph, layers_read
from .items import Made, made_once, making_once, own
from .layer_clock import LayerClock, Measured, cost_of
from .layer_state import Marks, describe
from .parameter_groups import Snapshot
from .random_state import random_state_kept
from .rebuild import units_of
from .script_changes import ScriptChanges
from .sized_costs import at_size, clusters_of, rows_of
from .sizes import Seen, agreed, seen_by, size_function
from .upstream import Engine, Model

WARM_UP, PASSES = 1, 3
UPDATES = (schedule.ReduceGrads, schedule.ReduceTiedGrads, schedule.OptimizerStep)


# (engine, the profile's text on rank 0, Claim.left): makes a PlanEngine of what is searched for it
Again = Callable[[Any, str, str], None]


@dataclass
class Auto:
    """What the switch needs."""

    again: Again
    kind: type  # DeepSpeed's own, of the engine
    groups: Snapshot  # of the user's optimizer or parameter groups, before DeepSpeed changed them
    hooks: list[set[int]]  # of the model, the engine's own
    changes: ScriptChanges  # since initialize()
    shares_cores: bool  # a layer's time is then that of its thread: how long it waits for a core is the plan's to count
    timeout_s: float  # of the section
    size_of: Callable[[Any], Any] | None = None  # the section's "sizes"
    loaded: tuple | None = None  # arguments of load_checkpoint()
    offered: tuple[str, Any] | None = None  # "set_dataiterator" or "set_dataloader", and what the script gave this rank


def begin(
    engine: Engine, original_init, again: Again, shares_cores: bool, section: Section, args: tuple, kwargs: dict
) -> dict[str, Marks]:
    """Makes DeepSpeed's own engine, which measures in its first train_batch(). Changes `kwargs` so that it can be read twice. Returns what
    that engine did to the layers of this rank, by their units (rebuild). `shares_cores`: ranks of this run do.
    """
    _refuse_idle(kwargs)
    if kwargs.get("model_parameters") is not None:
        kwargs["model_parameters"] = list(kwargs["model_parameters"])
    groups = Snapshot(kwargs.get("optimizer"), kwargs.get("model_parameters"))
    kind, had = type(engine), [set(hooks) for hooks in _hooks(kwargs["model"])]
    layers = units_of(kwargs["model"])
    before = {unit: describe(layer) for unit, layer in layers.items()}
    original_init(engine, *args, **kwargs)
    hooks = [set(now) - before for now, before in zip(_hooks(kwargs["model"]), had, strict=True)]
    engine.__class__ = type(kind.__name__, (AutoEngine, kind), {"__module__": kind.__module__})
    size_of = size_function(section.sizes) if section.sizes else None
    engine.__dict__["_ostinato_auto"] = Auto(again, kind, groups, hooks, ScriptChanges(engine), shares_cores, section.timeout_s, size_of)
    if dist.get_rank() == 0:
        print("ostinato: auto: the first train_batch() measures under DeepSpeed's own 1F1B, then searches", flush=True)
    return {unit: Marks(before[unit], describe(layer)) for unit, layer in layers.items()}


def _refuse_idle(kwargs: dict) -> None:
    """The same on every rank. DeepSpeed's own engine, which measures, does not start where a rank has nothing to train."""
    learns = any(parameter.requires_grad for parameter in kwargs["model"].parameters())
    idle = [rank for rank, learning in enumerate(everyones(learns)) if not learning]
    if idle and (kwargs.get("optimizer") or kwargs["config_class"].optimizer_name):
        raise OstinatoError(
            f'"auto" measures under DeepSpeed\'s own 1F1B, which does not start where a rank has nothing to train, as {ranks_in_words(idle)} under its '
            'partition: give the section a "plan", or a "profile" of the model'
        )


def _hooks(model: Model) -> tuple[dict, dict]:
    return model._forward_pre_hooks, model._forward_hooks


def _until_planned(method: Callable) -> Callable:
    """Whoever holds the engine's method since before the switch calls that of the engine's new class after it."""

    @wraps(method)
    def call(self, *args, **kwargs):
        if isinstance(self, AutoEngine):
            return method(self, *args, **kwargs)
        return getattr(type(self), method.__name__)(self, *args, **kwargs)

    return call


def _deepspeeds(name: str) -> Callable:
    """DeepSpeed's method, for as long as the plan's is not there."""

    @wraps(getattr(PipelineEngine, name))
    def call(self, *args, **kwargs):
        return getattr(super(AutoEngine, self), name)(*args, **kwargs)

    return _until_planned(call)


class AutoEngine(Engine):
    """Mixed in before PipelineEngine until the plan is there."""

    @_until_planned
    def set_dataiterator(self, iterator):
        """DeepSpeed keeps it on the first and the last rank alone, and under the plan others may read."""
        self._ostinato_auto.offered = "set_dataiterator", iterator
        super().set_dataiterator(iterator)

    @_until_planned
    def set_dataloader(self, loader):
        self._ostinato_auto.offered = "set_dataloader", loader
        super().set_dataloader(loader)

    def _next_batch(self):
        with making_once(self):
            return super()._next_batch()

    @_until_planned
    def train_batch(self, data_iter=None):
        if not torch.is_grad_enabled():
            return super().train_batch(data_iter)  # which DeepSpeed refuses before it reads anything
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        offered = self._ostinato_auto.offered
        loader, iterator = self.training_dataloader, self.data_iterator
        batches, read, why = _read(iterator, self.micro_batches, made_once(self.batch_fn)) if iterator is not None else ([], 0, None)
        sizes = _sizes(self, batches, why)
        self._ostinato_auto.changes.note()
        with random_state_kept(), starting("measuring, and then making its engine anew", range(dist.get_world_size()), self._ostinato_auto.timeout_s):
            profile, left = _measure(self, batches, read, sizes)
            _switch(self, profile, left)
        if iterator is not None:
            self.training_dataloader, self.data_iterator = loader, _again(self, batches, iterator)
        elif offered is not None:
            method, given = offered
            getattr(type(self), method)(self, given)
        return type(self).train_batch(self)  # past what the script may have put in its place: that has called this method

    @_until_planned
    def eval_batch(self, *args, **kwargs):
        offered = self._ostinato_auto.offered
        try:
            return super().eval_batch(*args, **kwargs)
        finally:
            self._ostinato_auto.offered = offered  # its iterator was for this evaluation

    @_until_planned
    def load_checkpoint(self, *args, **kwargs):
        """Repeated after the switch, under the plan's placement."""
        self._ostinato_auto.loaded = (args, kwargs)
        return super().load_checkpoint(*args, **kwargs)


for _name in {name for kind in PlanEngine.__mro__[:-1] for name in vars(kind)}:  # also those that only the plan changes
    if not _name.startswith("_") and _name not in vars(AutoEngine) and hasattr(PipelineEngine, _name):
        setattr(AutoEngine, _name, _deepspeeds(_name))


def _again(engine: Engine, batches: list[Made], iterator) -> Any:
    """What gives `batches`, and then what `iterator` still has."""
    run = getattr(engine, "_ostinato", None)
    if run is None:  # DeepSpeed's own engine goes on
        if engine.batch_fn is None:
            return chain((batch.value for batch in batches), iterator)
        engine.batch_fn = made_once(engine.batch_fn)
    if run is None or run.next_step is None:
        return chain(batches, iterator)
    run.next_step.put_back(iterator, batches)  # which knows it by what the script gives every step
    return iterator


def _read(iterator, count: int, batch_fn: Callable[[Any], Any]) -> tuple[list[Made], int, Exception | None]:
    """The batches of a step, the nanoseconds that one of them takes, and the error that ended the reading."""
    batches: list = []
    times = [0]
    begin = time.perf_counter_ns()
    try:
        for batch in islice(iterator, count):
            times.append(time.perf_counter_ns() - begin)
            batches.append(Made(own(batch_fn(batch))))
            begin = time.perf_counter_ns()
    except Exception as error:  # of the user's loader
        return batches, 0, error
    return batches, statistics.median_low(times[2:] or times), None  # the first waits for what reads ahead to start


def _sizes(engine: Engine, batches: list, why: Exception | None) -> tuple[float, ...]:
    """Of the micro-batches of this pipeline; () where the section has no "sizes". All ranks raise the same where one has none."""
    function = engine._ostinato_auto.size_of
    if function is None:
        if why is not None:
            raise why
        return ()
    seen = Seen()
    if engine.data_iterator is not None:
        short = len(batches) < engine.micro_batches
        why = why or (StopIteration() if short else None)
        seen = seen_by(function, [batch.value for batch in batches]) if why is None else Seen(error=f"reading micro-batch {len(batches)}: {type(why).__name__}: {why}")
    everyone = everyones(seen)
    of_pipelines = {tuple(ranks): agreed([everyone[rank] for rank in ranks]) for ranks in engine.grid.pipe_groups}
    return next(sizes for ranks, sizes in of_pipelines.items() if dist.get_rank() in ranks)


def _measure(engine: Engine, batches: list, read: int, sizes: tuple[float, ...]) -> tuple[str, str]:
    """Runs forwards and backwards of the step; the profile on rank 0, and what all are to know of what is not what it was before, in words.
    `read`: ns for a batch.
    """
    model = engine.module
    layers: dict[int | str, Any] = {**dict(enumerate(model.forward_funcs, model._local_start)), "loss": model.loss_fn}
    state = ForwardState(layers)
    offset, before = model.micro_offset, state.now()
    model.train()
    engine.total_loss, engine._compute_loss = None, True
    clock = LayerClock(model, UndisturbedCpu() if engine._ostinato_auto.shares_cores else host_timed(torch.device(engine.device)))
    with clock:
        for repeat in rounds(WARM_UP, PASSES):
            clock.counts = repeat >= 0
            engine.data_iterator = map(own, batches)  # a loss may write to its labels
            _run_step(engine, clock)
    state.restore(before)
    lost = state.lost(before) + state.iterators()
    if lost:
        print(announce.measuring_left(dist.get_rank(), lost), flush=True)
    for parameter in model.parameters():
        parameter.grad = None
    model.micro_offset = offset
    left = [rank for rank, some in enumerate(everyones(bool(lost))) if some]
    return _profile(engine, clock, max(everyones(read)), sizes), announce.left_by_measuring(left) if left else ""


def _run_step(engine: Engine, clock: LayerClock) -> None:
    """DeepSpeed's own training schedule without what updates weights."""
    steps = schedule.TrainSchedule(engine.micro_batches, engine.num_stages, engine.stage_id)
    engine._reserve_pipe_buffers(steps.num_pipe_buffers())
    engine.fwd_outputs = []
    for command in (c for commands in steps for c in commands if not isinstance(c, UPDATES)):
        run = partial(engine._INSTRUCTION_MAP[type(command)], engine, **command.kwargs)
        clock.backward(run) if isinstance(command, schedule.BackwardPass) else run()


def _profile(engine: Engine, clock: LayerClock, read: int, sizes: tuple[float, ...]) -> str:
    """Rank 0 gets the measurements of all ranks and makes a profile of them; "" elsewhere."""
    config, optimizer, on_cpu = engine._config._param_dict, engine.client_optimizer, torch.device(engine.device).type == "cpu"
    settings = read_settings(config, optimizer, not on_cpu)
    # On an accelerator copies of parameters may not find room beside the model.
    steps = StepClock.of(config, optimizer, settings, host_timed(torch.device(engine.device))) if on_cpu else None
    clusters, reference = clusters_of(sizes), max(1, round(statistics.fmean(sizes))) if sizes else 0
    measured = clock.measured(settings, steps)
    everyone = everyones([at_size(layer, sizes, clusters, reference) if sizes else (layer, ((), ())) for layer in measured])
    if dist.get_rank() != 0:
        return ""
    found = {layer.index: (layer, curves) for of_rank in reversed(everyone) for layer, curves in of_rank}  # the first replica's
    layers = {index: layer for index, (layer, _) in found.items()}
    profile = _profiler.Profile()
    profile.model, profile.timer = "measured by ostinato inside DeepSpeed", "cpu"
    profile.warm_up, profile.repeats = WARM_UP, PASSES
    profile.micro_batch_size = engine.train_micro_batch_size_per_gpu()
    profile.layers = _rows([layers[index] for index in sorted(layers)], engine.module._layer_specs)
    if rows := rows_of([found[index][1] for index in sorted(found)], clusters):
        profile.tokens, profile.sizes = reference, rows
    profile.model_sha256 = digest_of_layers(row.digest for row in profile.layers)
    profile.completeness.complete = True
    samples = [layer.samples for layer in layers.values()]
    profile.rank = _rank_cost(settings, torch.device(engine.device), profile.layers, read, samples)
    return profile.json()


def _rank_cost(settings, device: torch.device, rows: list, read: int, samples: list[Samples]) -> Any:
    cost = rank_cost(settings, read, samples) if device.type == "cpu" else rank_cost(settings)
    try:
        count_blocks(cost, rows, host_timed(device))
    except ProfileError as error:
        print(f"ostinato: auto: what a block costs beside its layers is not counted: {error}", flush=True)
    return cost


def _rows(layers: list[Measured], specs: list) -> list[Any]:
    """As profiles hold them; of a model with branches, with what each layer reads."""
    rows = [cost_of(layer) for layer in layers]
    if is_graph(specs):
        for row, reads in zip(rows, layers_read(specs), strict=True):
            row.after = [_profiler.LayerInput(source, layers[source].output_bytes) for source in reads]
    return rows


def _switch(engine: Engine, profile: str, left: str) -> None:
    """The same engine object, made anew. Objects that deepspeed.initialize() has returned stay those that work."""
    auto, model = engine._ostinato_auto, engine.module
    DeepSpeedEngine.destroy(engine)
    for hooks, mine in zip(_hooks(model), auto.hooks, strict=True):
        for key in mine & set(hooks):
            del hooks[key]
    auto.groups.restore()
    engine.__dict__.clear()
    engine.__class__ = auto.kind
    auto.again(engine, profile, left)
    auto.changes.repeat(partial(_load, engine, *auto.loaded) if auto.loaded is not None else None)


def _load(engine: Engine, args: tuple, kwargs: dict) -> None:
    type(engine).load_checkpoint(engine, *args, **kwargs)
