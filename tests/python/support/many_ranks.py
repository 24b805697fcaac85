# SPDX-License-Identifier: Apache-2.0
"""What as many ranks as there are run in test_many_ranks.py, and the same on one process."""

import atexit
import gc
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from ostinato.ranks.connection import connected
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from .random_model import BATCH, WIDTH, Plain

STEPS = 5


@dataclass(frozen=True)
class Job:
    plan: str
    layers: int
    micro_batches: int


def chain(job: Job) -> list[nn.Module]:
    """The same weights wherever it is built."""
    torch.manual_seed(7)
    return [Plain() for _ in range(job.layers)]


def batch(job: Job, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    rows = job.micro_batches * BATCH
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


def loss(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)  # what comes out of 128 layers is large


def alone(job: Job) -> list[float]:
    """The losses on one process."""
    torch.set_num_threads(1)
    model, losses = nn.Sequential(*chain(job)), []
    sgd = optimizer(model)
    for step in range(STEPS):
        each = [
            loss(model(x), y)
            for x, y in zip(*(t.chunk(job.micro_batches) for t in batch(job, step)), strict=True)
        ]
        for value in each:
            (value / job.micro_batches).backward()
        sgd.step()
        sgd.zero_grad()
        losses.append((torch.stack(each).detach().sum() / job.micro_batches).item())
    return losses


def held() -> dict[str, int]:
    gc.collect()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


@dataclass(frozen=True)
class Ran:
    losses: list[float | None]
    before: dict[str, int]  # held after a step
    after: dict[str, int]  # held after all
    start_s: float
    steps_s: float


def run(job: Job) -> Ran:
    """Steps of a Pipeline."""
    from ostinato.torch import Pipeline, layers

    begin = time.monotonic()
    pipeline = Pipeline(job.plan, layers(chain(job)), loss)
    connected(_get_default_store())  # which the watch makes, some day
    sgd = optimizer(pipeline)
    losses: list[float | None] = []
    started = time.monotonic()
    for step in range(STEPS):
        mean = pipeline.step(*batch(job, step))
        sgd.step()
        sgd.zero_grad()
        losses.append(None if mean is None else mean.item())
        if step == 0:
            before = held()
    ran = Ran(losses, before, held(), started - begin, time.monotonic() - started)
    dist.barrier()
    return ran


def train(job: Job) -> Ran:
    """Steps of DeepSpeed's engine under the plan."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    from .training import known

    begin = time.monotonic()
    torch.manual_seed(7)
    with known({"plan": job.plan} if job.plan else None):
        model = PipelineModule(
            [LayerSpec(Plain) for _ in range(job.layers)], num_stages=dist.get_world_size(), loss_fn=loss
        )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config={
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": job.micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
        **({"ostinato": {"plan": job.plan}} if job.plan else {}),
    })  # fmt: skip
    connected(_get_default_store())
    losses: list[float | None] = []
    started = time.monotonic()
    for step in range(STEPS):
        losses.append(
            engine.train_batch(
                iter(list(zip(*(t.chunk(job.micro_batches) for t in batch(job, step)), strict=True)))
            ).item()
        )
        if step == 0:
            before = held()
    return Ran(losses, before, held(), started - begin, time.monotonic() - started)


def say_to(folder: str) -> None:
    """What this rank says from now on, into a file of its own."""
    into = os.open(f"{folder}/{dist.get_rank()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(into, 2)
    os.close(into)


def leave() -> None:
    """The end of a process in good order, as the interpreter has it; multiprocessing's leaves that out."""
    atexit._run_exitfuncs()
    os._exit(0)


def stall(job: Job, timeout_s: float) -> None:
    """The last rank does not come to the step before the others have given up."""
    from ostinato import _plugin
    from ostinato.torch import Pipeline, layers

    pipeline = Pipeline(job.plan, layers(chain(job)), loss, timeout_s=timeout_s)
    last = dist.get_rank() == dist.get_world_size() - 1
    if not last:
        try:
            pipeline.step(*batch(job, 0))
        except _plugin.StepTimeout:
            pass
    dist.barrier()
