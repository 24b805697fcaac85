# SPDX-License-Identifier: Apache-2.0
"""What runs on every rank of a World: a model of the zoo under DeepSpeed alone, or under an "ostinato"
section."""

import gc
import io
import random
from contextlib import redirect_stdout
from dataclasses import dataclass, field

import numpy
import torch
import torch.distributed as dist
from support.training import in_both_starts, known, weights

from .model import Model
from .placements import MICRO_BATCHES

STEPS = 3
START, STEP = "initialize()", "step"
OWN = {"OstinatoError", "ExecutionError"}  # errors of ostinato's own: of the host, and of the executor


@dataclass
class Outcome:
    """Of one rank. `said`: its lines about ostinato, in order; `failed`: what was raised, where and as what."""

    losses: list[float] = field(default_factory=list)
    evaluation: float | None = None
    weights: dict[str, bytes] = field(default_factory=dict)
    kinds: dict[str, torch.dtype] = field(default_factory=dict)  # of those weights that are here
    apart: str = ""  # two ranks hold different ones under one name
    said: list[str] = field(default_factory=list)
    failed: str = ""
    refusal: bool = False  # one of OWN
    where: str = START


def train(model: Model, section: dict | None, optimizer: str | None = None, steps: int = STEPS) -> Outcome:
    """`optimizer`: in the place of the model's."""
    outcome, printed = Outcome(), io.StringIO()
    try:
        with redirect_stdout(printed):
            in_both_starts(_start, outcome, model, section, optimizer, steps)
    except Exception as error:
        if section is None:  # DeepSpeed alone: the model is at fault
            raise
        outcome.failed = f"{type(error).__name__}: {error}"
        outcome.refusal = any(kind.__name__ in OWN for kind in type(error).__mro__)
    outcome.said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return outcome


def train_named(name: str, *args, **kwargs) -> Outcome:
    from .catalogue import MODELS

    return train(MODELS[name], *args, **kwargs)


def _start(outcome: Outcome, *args) -> None:
    vars(outcome).update(vars(Outcome()))  # of what the first start did nothing counts
    _without_its_groups(_train, outcome, *args)


def _train(outcome: Outcome, model: Model, section, optimizer, steps: int) -> None:
    engine = make_engine(model, section, optimizer)
    reads = engine.is_first_stage() or engine.is_last_stage()
    for step in range(steps):
        outcome.where = f"{STEP} {step + 1}"
        if step == 0:
            data = model.batches(7) if reads else None
        outcome.losses.append(engine.train_batch(data).item())
    outcome.where = "eval_batch()"
    outcome.evaluation = engine.eval_batch(
        model.batches(99) if engine.is_first_stage() or engine.is_last_stage() else None
    ).item()
    outcome.where = "the comparison"
    replica = engine.grid.data_parallel_id
    held = [*engine.module.named_parameters(), *engine.module.named_buffers()]
    outcome.kinds = {f"{name}@{replica}": tensor.dtype for name, tensor in held}
    try:
        outcome.weights = weights(engine)
    except AssertionError as error:
        outcome.apart = str(error).splitlines()[0]


def make_engine(model: Model, section: dict | None, optimizer: str | None):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1000 + dist.get_rank())
    kind = model.kind or PipelineModule
    arguments = {"num_stages": min(dist.get_world_size(), 4), "partition_method": "uniform", **model.pipeline}
    with known(section):
        module = kind(layers=model.layers(), loss_fn=model.loss, **arguments)
    if model.between is not None:
        model.between(module)
    chosen = optimizer or model.optimizer
    if callable(chosen):
        given = {"optimizer": chosen(module)}
    else:
        given = {"model_parameters": [p for p in module.parameters() if p.requires_grad]}
    engine, *_ = deepspeed.initialize(model=module, config=configuration(model, section, chosen), **given)
    if model.after is not None:
        model.after(engine)
    return engine


def configuration(model: Model, section: dict | None, optimizer) -> dict:
    inputs, _ = next(model.batches(7))
    made = {
        "train_micro_batch_size_per_gpu": len(inputs[0] if isinstance(inputs, tuple) else inputs),
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        **model.config,
    }
    if not callable(optimizer):
        parameters = {"lr": 0.05, "momentum": 0.5} if optimizer == "SGD" else {"lr": 0.01, "torch_adam": True}
        made["optimizer"] = {"type": optimizer, "params": parameters}
    return made | ({} if section is None else {"ostinato": section})


def _without_its_groups(function, *args):
    """Calls it, and ends the process groups that it made and that nobody keeps: their threads wake up for
    ever."""
    from deepspeed.utils import groups

    world = dist.distributed_c10d._world
    before = set(world.pg_map)
    try:
        return function(*args)
    finally:
        kept = {
            id(held)
            for value in vars(groups).values()
            for held in (value.values() if isinstance(value, dict) else [value])
        }
        for group in [group for group in world.pg_map if group not in before and id(group) not in kept]:
            dist.destroy_process_group(group)
        gc.collect()  # engines hold theirs in cycles
