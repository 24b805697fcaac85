# SPDX-License-Identifier: Apache-2.0
"""What as many ranks as there are run in test_many_ranks.py, and the same on one process."""

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


def alone(job: Job) -> list[float]:
    """The losses on one process."""
    torch.set_num_threads(1)
    model, losses = nn.Sequential(*chain(job)), []
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        each = [loss(model(x), y) for x, y in zip(*(t.chunk(job.micro_batches) for t in batch(job, step)), strict=True)]
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
    sgd = torch.optim.SGD(pipeline.parameters(), lr=0.1)
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
