# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own engine, up to its first training step.

The script makes DeepSpeed's real PipelineModule and engine, as rank 0 of a world that world.py pretends, and
may do with them whatever it does before it trains. `train_batch()` (of a model that is no PipelineModule: its
first forward) is not run: it hands the layers, the loss and one micro-batch to the host, and does not return.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import inspect
import itertools
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from ostinato.errors import Status, counted, put
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import autocast_of
from ostinato.profile.script.changed_layers import (
    Types,
    built_or_spec,
    changed_alike,
    compiled_layers,
    in_training,
    is_compiled,
    layers_as_changed,
    spelled,
    states_of,
    twin,
)
from ostinato.profile.script.world import World
from ostinato.restrictions import of_classes


READS = 3  # batches, beside the one that is profiled


class Host(Protocol):
    """Who runs the script. take() and fail() do not return: the script must not go on, whatever it catches."""

    def take(self, job: Job) -> NoReturn: ...

    def fail(self, error: ProfileError) -> NoReturn: ...

    def restart(self, size: int) -> None:
        """The script needs a world of this many ranks. Returns where that would not help."""


def patched(owner: type, name: str, made: dict[tuple[type, str], Any]) -> Callable:
    """Decorator: the function takes the place of a method, which is its first argument. `made` keeps what was
    there."""

    def put(function: Callable) -> Callable:
        before = getattr(owner, name)
        made[owner, name] = vars(owner).get(name)
        # Ours does without the "ostinato" section.
        stock = inspect.unwrap(before) if name == "__init__" else before

        @functools.wraps(stock)
        def method(self: Any, *args: Any, **named: Any) -> Any:
            return function(functools.partial(stock, self), self, *args, **named)

        setattr(owner, name, method)
        return function

    return put


class Takeover:
    """Changes to DeepSpeed while the script runs."""

    def __init__(self, world: World, host: Host):
        self.world, self.host = world, host
        self.reached = False  # a PipelineModule or an engine has been made
        self.states: dict[int, dict[int, Any]] = {}  # by id of a model
        self.types: dict[int, Types] = {}
        # By id of an engine without a PipelineModule: its model's twin.
        self.modules: dict[int, nn.Module] = {}
        self.evaluated: Callable[[], Job] | None = None  # the first evaluation's micro-batch
        self.saved: dict[str, str] = {}  # folders of checkpoints, and where they went instead
        self.noted: list[str] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        try:
            import deepspeed
            from deepspeed.ops import __compatible_ops__ as operators
            from deepspeed.utils import groups
        except ImportError as error:
            raise ProfileError(
                f"running a training script needs DeepSpeed: {error}", Status.MISSING
            ) from error
        made: dict[tuple[Any, str], Any] = {}
        known = dict(vars(groups))  # DeepSpeed's own memory of process groups
        accelerator, compiled = deepspeed.get_accelerator(), operators.get("deepspeed_shm_comm")
        operators["deepspeed_shm_comm"] = (
            False  # else init_distributed() compiles it, for a minute; one rank needs none
        )
        half = vars(accelerator).get("is_fp16_supported")
        # DeepSpeed refuses to train with it on a CPU; measuring is another thing.
        accelerator.is_fp16_supported = lambda: True
        self.linear = nn.functional.linear  # ZeRO-3 puts another one there
        self._patch_model(made)
        self._patch_engine(made)
        self._patch_checkpoints(made)
        try:
            yield
        finally:
            for (owner, name), before in made.items():
                delattr(owner, name) if before is None else setattr(owner, name, before)
            nn.functional.linear = self.linear
            vars(groups).update(known)
            operators["deepspeed_shm_comm"] = compiled
            del accelerator.is_fp16_supported
            if half is not None:
                accelerator.is_fp16_supported = half

    def note(self, line: str) -> None:
        if line not in self.noted:
            self.noted.append(line)
            put(f"ostinato profile: {line}")

    def _patch_model(self, made: dict) -> None:
        from deepspeed.pipe import PipelineModule
        from deepspeed.runtime.config import DeepSpeedConfig
        from deepspeed.runtime.zero.partition_parameters import Init

        signature, of_parts = inspect.signature(PipelineModule.__init__), inspect.signature(Init.__init__)

        @patched(Init, "__init__", made)
        def whole(stock: Callable, part: Any, *args: Any, **named: Any) -> None:
            """deepspeed.zero.Init() leaves the parameters whole: they are measured."""
            given = of_parts.bind(part, *args, **named)
            given.arguments["enabled"] = False
            stock(*given.args[1:], **given.kwargs)

        @patched(PipelineModule, "__init__", made)
        def make(stock: Callable, model: Any, *args: Any, **named: Any) -> None:
            self.reached = True
            given = signature.bind(model, *args, **named).arguments
            self._need(ranks_asked(given.get("topology"), given.get("num_stages"), self.world.size))
            stock(*args, **named)
            with in_training(model):
                self.states[id(model)] = states_of(model)

        @patched(DeepSpeedConfig, "__init__", made)
        def configure(
            stock: Callable, _made: Any, config: Any, mpu: Any = None, *args: Any, **named: Any
        ) -> None:
            self._need(ranks_of_batches(config, mpu, self.world.size))
            stock(config, mpu, *args, **named)

    def _need(self, size: int) -> None:
        if size != self.world.size:
            self.host.restart(size)

    def _patch_engine(self, made: dict) -> None:
        from deepspeed.runtime.engine import DeepSpeedEngine
        from deepspeed.runtime.pipe.engine import PipelineEngine

        signature = inspect.signature(inspect.unwrap(DeepSpeedEngine.__init__))

        @patched(PipelineEngine, "__init__", made)
        def begin_pipeline(stock: Callable, engine: Any, *args: Any, **named: Any) -> None:
            model = named["model"] if "model" in named else args[2]
            self.types[id(model)] = {id(t): t.dtype for t in (*model.parameters(), *model.buffers())}
            stock(*args, **named)

        @patched(DeepSpeedEngine, "__init__", made)
        def begin(stock: Callable, engine: Any, *args: Any, **named: Any) -> None:
            self.reached = True
            if not isinstance(engine, PipelineEngine):
                model = signature.bind(engine, *args, **named).arguments["model"]
                if not isinstance(model, nn.Module):
                    self.host.fail(
                        ProfileError(
                            f"deepspeed.initialize() got a {type(model).__name__} as its model: pass an nn.Module"
                        )
                    )
                self.modules[id(engine)] = self._twin_of(model)
            stock(*args, **named)

        @patched(DeepSpeedEngine, "forward", made)
        def forward(stock: Callable, engine: Any, *args: Any, **named: Any) -> Any:
            if isinstance(engine, PipelineEngine):
                return stock(*args, **named)
            job = functools.partial(self._job_of_module, engine, args, named)
            parameters = list(engine.module.parameters())
            if torch.is_grad_enabled() and (not parameters or any(p.requires_grad for p in parameters)):
                self.host.take(job())
            if self.evaluated is None:  # a teacher, or a validation: what trains may come later
                self.evaluated = job
            return stock(*args, **named)

        @patched(DeepSpeedEngine, "get_optimizer_configuration", made)
        def uncompiled(stock: Callable, engine: Any, parameters: dict, *args: Any, **named: Any) -> Any:
            """Adam without compiling DeepSpeed's own: no step is made."""
            if not engine.zero_use_cpu_optimizer():
                parameters["torch_adam"] = True
                for option in ("bias_correction", "set_grad_none"):  # that torch's does not have
                    parameters.pop(option, None)
            return stock(parameters, *args, **named)

        @patched(PipelineEngine, "train_batch", made)
        def train_batch(
            _stock: Callable, engine: Any, data_iter: Any = None, *_args: Any, **_named: Any
        ) -> NoReturn:
            if data_iter is not None:
                engine.set_dataiterator(data_iter)
            engine.module.train()
            job = self._job_of(engine, engine._next_batch())
            job.read = time_to_read(engine)
            self.host.take(job)

        @patched(PipelineEngine, "_next_batch", made)
        def next_batch(stock: Callable, engine: Any) -> Any:
            batch = stock()
            if self.evaluated is None:
                self.evaluated = functools.partial(self._job_of, engine, batch)
            return batch

        @patched(PipelineEngine, "_bcast_pipe_scalar", made)
        def told(stock: Callable, engine: Any, *args: Any, **named: Any) -> Any:
            """Returns 1 in place of the last stage's loss: a script may take its logarithm."""
            value = stock(*args, **named)
            if engine.is_last_stage():
                return value
            self.note("eval_batch() returns 1.0, because the stages after rank 0's do not run")
            return torch.ones_like(value)

    def _patch_checkpoints(self, made: dict) -> None:
        from deepspeed.runtime.engine import DeepSpeedEngine

        for name in ("save_checkpoint", "save_16bit_model", "save_fp16_model"):

            @patched(DeepSpeedEngine, name, made)
            def save(stock: Callable, _engine: Any, save_dir: Any, *args: Any, **named: Any) -> Any:
                place = os.path.abspath(save_dir)
                if place not in self.saved:
                    self.saved[place] = tempfile.mkdtemp(prefix="ostinato-checkpoint-")
                    atexit.register(shutil.rmtree, self.saved[place], ignore_errors=True)
                    self.note(
                        f"a checkpoint for {save_dir} goes to a temporary folder, which is deleted at the end"
                    )
                return stock(self.saved[place], *args, **named)

        @patched(DeepSpeedEngine, "load_checkpoint", made)
        def load(stock: Callable, _engine: Any, load_dir: Any, *args: Any, **named: Any) -> Any:
            return stock(self.saved.get(os.path.abspath(load_dir), load_dir), *args, **named)

    def _twin_of(self, model: nn.Module) -> nn.Module:
        try:
            return twin(model, {})
        except Exception as error:  # whatever a module of the script's may have in it
            self.note(
                f"the model cannot be copied ({type(error).__name__}: {error}): measuring it as DeepSpeed has left it"
            )
            return model

    def _job_of(self, engine: Any, batch: Any) -> Job:
        model = engine.module
        if batch is None:
            self.host.fail(
                ProfileError(
                    "train_batch() was called without data_iter, and initialize() without training_data"
                )
            )
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            self.host.fail(
                ProfileError(
                    "the data iterator must yield (inputs, labels), as DeepSpeed's pipeline engine requires"
                )
            )
        if compiled := compiled_layers(model, self.states.get(id(model), {})):
            self.host.fail(
                ProfileError(
                    f"compile() was called on {counted(len(compiled), 'layer')} ({spelled(compiled)}), of which ostinato profile "
                    'measures copies, which are not compiled: use "auto", which measures layers in DeepSpeed\'s engine, or '
                    "leave compile() out"
                )
            )
        job = Job(
            inputs=batch[0],
            labels=batch[1],
            loss_fn=model.loss_fn,
            config=config_of(engine),
            optimizer=own_optimizer(engine),
            checkpoint_interval=model.activation_checkpoint_interval,
            checkpointable=model._is_checkpointable,
            restrictions=of_classes(model, engine),
            held=built_or_spec(model),
            stages=[end - begin for begin, end in itertools.pairwise(model.partitions())],
            micro_batches=engine.micro_batches,
            slices=max(1, model.topology().get_dim("model")),
            autocast=autocast_of(engine),
        )
        model.to("cpu")  # each layer goes back to the device when it is measured
        release(engine)
        job.layers, notes = layers_as_changed(
            model, self.states.get(id(model), {}), self.types.get(id(model), {})
        )
        for line in notes:
            self.note(line)
        return job

    def _job_of_module(self, engine: Any, inputs: tuple, named: dict) -> Job:
        """The first forward of a module that is no PipelineModule. Its loss, if it has none inside, is not
        known."""
        module, nn.functional.linear = self.modules.get(id(engine), engine.module), self.linear
        changed_alike(module, engine.module)
        if is_compiled(engine.module):
            self.host.fail(
                ProfileError(
                    "compile() was called on the model or a part of it, which hides operators from its graph: leave it out"
                )
            )
        job = Job(
            module=module,
            inputs={**dict(enumerate(inputs)), **named} if named else inputs,
            config=config_of(engine),
            optimizer=own_optimizer(engine),
            autocast=autocast_of(engine),
        )
        release(engine)
        return job


def time_to_read(engine: Any) -> int:
    """Nanoseconds for a batch, of those that the rest of a step would read; 0: there are no more."""
    times = [0]
    with contextlib.suppress(Exception):  # the script's iterator has ended, or whatever else it may do
        for _ in range(min(READS, engine.micro_batches - 1)):
            begin = time.perf_counter_ns()
            batch = engine._next_batch()
            if batch is not None:
                times.append(time.perf_counter_ns() - begin)
    return int(statistics.median_low(times[1:] or times))


def ranks_asked(topology: Any, stages: int | None, size: int) -> int:
    """Of a PipelineModule. A topology that a script has made of a too small world has dimensions of 0."""
    if topology is not None:
        return math.prod(max(1, dimension) for dimension in topology.dims)
    return size if not stages or size % stages == 0 else stages


def config_of(engine: Any) -> dict:
    """With the size of a micro-batch, which may follow from that of the whole batch and the number of replicas."""
    return engine._config._param_dict | {
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu()
    }


def ranks_of_batches(config: Any, mpu: Any, size: int) -> int:
    """With so many data parallel replicas that the configuration's batch sizes agree, where it gives all
    three."""
    settings = parsed(config)
    keys = "train_batch_size", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"
    given = [number for key in keys if isinstance(number := settings.get(key), int) and number > 0]
    if len(given) < len(keys) or given[0] % (given[1] * given[2]):
        return size
    whole, steps, micro = given
    replicas = mpu.get_data_parallel_world_size() if mpu is not None else size
    return size if whole // (micro * steps) == replicas else size // replicas * (whole // (micro * steps))


def parsed(config: Any) -> dict:
    """From a dict or a file; DeepSpeed itself reports anything else."""
    if isinstance(config, dict):
        return config
    try:
        from deepspeed.runtime.tensor_parallel.init_utils import load_ds_config

        return load_ds_config(config)
    except Exception:
        return {}


def own_optimizer(engine: Any) -> Any:
    """The script's own, without its parameters; None: the configuration names it."""
    if engine.client_optimizer is None:
        return None
    made = copy.copy(engine.basic_optimizer)
    made.param_groups, made.state = [], {}
    return made


def release(engine: Any) -> None:
    """Lets go of the memory that training would need. The weights stay: layers may be built on weights of
    other layers, or the script's."""
    for parameter in engine.module.parameters():
        parameter.grad = None
    for optimizer in {
        id(made): made for made in (engine.optimizer, engine.basic_optimizer) if made is not None
    }.values():
        vars(optimizer).clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
