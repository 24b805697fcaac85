# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_training_gpu.py run, each with a GPU of its own over NCCL; where
OSTINATO_GPU_TESTS=cpu, on the CPU over gloo, with the groups that a GPU gets: that tries the tests, and shows
nothing about a GPU.
"""

import os
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from unittest import mock

import executor_jobs
import torch
import torch.distributed as dist
from ostinato.groups import link_groups

from ostinato import offload

from . import torch_jobs
from .linked import a_group_for_each_direction
from .training import Options, make_engine, data_of

ON_CPU = os.environ.get("OSTINATO_GPU_TESTS") == "cpu"
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def place(rank: int) -> torch.device:
    return torch.device("cpu") if ON_CPU else torch.device("cuda", rank)


def reserved() -> int:
    """Bytes that the allocator holds."""
    return 0 if ON_CPU else torch.cuda.memory_reserved()


def spawn(job, world: int, folder: Path, *arguments) -> list:
    """What job(rank, world, folder, *arguments) returned on each rank."""
    torch.multiprocessing.spawn(_run, (job, world, folder, *arguments), nprocs=world, join=True)
    return [
        torch.load(folder / f"{rank}.pt", map_location="cpu", weights_only=False) for rank in range(world)
    ]


def _run(rank: int, job, world: int, folder: Path, *arguments) -> None:
    torch.set_num_threads(1)
    if not ON_CPU:
        torch.cuda.set_device(rank)
    with a_group_for_each_direction() if ON_CPU else nullcontext():
        result = job(rank, world, folder, *arguments)
    torch.save(result, folder / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def join(rank: int, world: int, folder: Path, eager: bool) -> None:
    """`eager`: with the device, as DeepSpeed does: every group that is bound to it shares one stream."""
    store = dist.FileStore(str(folder / "store"), world)
    device = {"device_id": place(rank)} if eager and not ON_CPU else {}
    dist.init_process_group(
        "gloo" if ON_CPU else "nccl",
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=300),
        **device,
    )


def train_on_executors(
    rank: int, world: int, folder: Path, cases: dict, steps: int, eager: bool, looks: bool
) -> dict:
    """{case: losses, weights, and the reserved memory after each step}."""
    from ostinato import _plugin

    join(rank, world, folder, eager)
    results = {}
    for name, files in cases.items():
        program = _plugin.lower(*files)
        links = link_groups(program.links, range(world), None, place(rank))
        run = executor_jobs.Rank(
            program, rank, dist.group.WORLD, device=place(rank), looks=looks, links=links
        )
        held = []
        run.train(steps, after_step=lambda held=held: held.append(reserved()))
        losses = [[float(value) for value in step] for step in run.losses]
        weights = {
            s: {key: value.cpu() for key, value in module.state_dict().items()}
            for s, module in run.modules.items()
        }
        results[name] = {"losses": losses, "weights": weights, "reserved": held}
    return results


def train_pipeline(rank: int, world: int, folder: Path, case: torch_jobs.Case, eager: bool) -> dict:
    if world > 1:
        join(rank, world, folder, eager)
    with mock.patch.object(offload, "check"):  # which refuses CPUs
        result = torch_jobs.train(case)
    peak = 0 if ON_CPU else torch.cuda.max_memory_allocated()
    cpu = [{name: _to_cpu(gradient) for name, gradient in step.items()} for step in result["gradients"]]
    return {"losses": result["losses"], "gradients": cpu, "peak": peak}


def _to_cpu(gradient):
    return (gradient[0].cpu(), *gradient[1:]) if isinstance(gradient, tuple) else gradient.cpu()


def train_with_deepspeed(rank: int, world: int, folder: Path, plan: str, steps: int) -> dict:
    """Losses of DeepSpeed's own schedule and of the plan, one after the other, and an evaluation after them."""
    import deepspeed
    import ostinato.deepspeed  # noqa: F401  turns the section on

    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": folder.stat().st_ino % 9000 + 20_000,
    }
    os.environ.update({key: str(value) for key, value in environment.items()})
    if ON_CPU:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # which it would compile
    deepspeed.init_distributed("gloo" if ON_CPU else "nccl")
    results = {}
    for name, section in {"alone": None, "planned": {"plan": plan}}.items():
        engine = make_engine(Options(stages=world, section=section, optimizer="SGD"))
        data = data_of(engine)
        losses = [engine.train_batch(data).item() for _ in range(steps)]
        results[name] = {"losses": losses, "evaluation": engine.eval_batch(data_of(engine, seed=99)).item()}
    return results
