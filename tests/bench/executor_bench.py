# SPDX-License-Identifier: Apache-2.0
"""A step of tiny stages: our executor against torch.distributed.pipelining's schedule runtime and DeepSpeed's
engine.

    PYTHONPATH=build/release/python python tests/bench/executor_bench.py [--steps 60] [--ranks 2] [--no-deepspeed]

All run the same 1F1B order of the same layers on one host, forwards and backwards only (no optimizer), in the
same processes and in turns, so that what else the machine does hits all of them; ours twice, once over gloo
alone, as the others. Ranks share the machine's cores: only the ratios count. Also printed: what an
instruction costs beside the operators, on one rank without transfers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from plan_files import write_chain  # noqa: E402

WIDTH, BATCH, MICRO_BATCHES = 16, 4, 8
OURS = "ostinato"


def layers(ranks: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(ranks)]


def loss_fn(output, target):
    return (output - target).pow(2).mean()


def batch():
    torch.manual_seed(1)
    return torch.randn(MICRO_BATCHES * BATCH, WIDTH), torch.randn(MICRO_BATCHES * BATCH, WIDTH)


def executor_of(program, rank, module, shared_memory=True):
    from ostinato import _plugin

    group = dist.distributed_c10d._get_default_group()
    executor = _plugin.Executor(program, rank, group, list(range(program.ranks)), shared_memory=shared_memory)
    x, y = (t.chunk(MICRO_BATCHES) for t in batch())

    def forward(m, inputs):
        out = module(x[m] if inputs is None else inputs[0])
        return loss_fn(out, y[m]) / MICRO_BATCHES if rank == program.ranks - 1 else out

    executor.set_stage(rank, forward)
    return executor


def torch_step(program, rank, module, folder):
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    stage = PipelineStage(module, rank, program.ranks, torch.device("cpu"))
    schedule = _PipelineScheduleRuntime([stage], MICRO_BATCHES, loss_fn=loss_fn)
    path = Path(folder) / f"compute.{rank}.csv"
    path.write_text("".join(program.text(r, transfers=False) + "\n" for r in range(program.ranks)))
    schedule._load_csv(str(path), format="compute_only")
    x, y = batch()
    first = (x,) if rank == 0 else ()
    last = dict(target=y) if rank == program.ranks - 1 else {}
    return lambda: schedule.step(*first, **last)


def deepspeed_step(ranks):
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe import schedule as ds

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # spares a build of minutes, plays no part here
    )
    deepspeed.init_distributed("gloo")
    module = PipelineModule(layers(ranks), num_stages=ranks, loss_fn=loss_fn, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=list(module.parameters()),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "optimizer": {"type": "Adam", "params": {"lr": 0.0, "torch_adam": True}},
            "steps_per_print": 10**9,
        },
    )

    class ForwardsAndBackwards(ds.TrainSchedule):
        """Its 1F1B without the steps at the end that are no part of the pipeline."""

        def steps(self):
            left_out = (ds.OptimizerStep, ds.ReduceGrads, ds.ReduceTiedGrads)
            for commands in super().steps():
                yield [c for c in commands if not isinstance(c, left_out)]

    x, y = (t.chunk(MICRO_BATCHES) for t in batch())

    def step():
        engine.set_dataiterator(iter(zip(x, y, strict=True)))
        engine.total_loss, engine._compute_loss = None, True
        engine._exec_schedule(ForwardsAndBackwards(MICRO_BATCHES, ranks, engine.stage_id))

    return step


def run(rank: int, ranks: int, folder: str, files, steps: int, with_deepspeed: bool):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        DS_ACCELERATOR="cpu",
        MASTER_ADDR="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks
    )
    from ostinato import _plugin

    program = _plugin.lower(*files)
    executor = executor_of(program, rank, layers(ranks)[rank])
    runners = {
        OURS: executor.run,
        "ostinato over gloo alone": executor_of(program, rank, layers(ranks)[rank], shared_memory=False).run,
        "torch schedule runtime": torch_step(program, rank, layers(ranks)[rank], folder),
    }
    if with_deepspeed:
        runners["deepspeed engine"] = deepspeed_step(ranks)
    times = {name: [] for name in runners}
    for turn in range(steps + 3):
        for name, step in runners.items():
            dist.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            step()
            if turn >= 3:
                times[name].append((time.perf_counter() - begin, time.process_time() - cpu))
    cpu = torch.tensor([[c for _, c in values] for values in times.values()])  # of all threads, gloo's too
    dist.all_reduce(cpu)
    costs = transfers(program, rank, executor, steps)
    if rank == 0:
        walls = {name: [w for w, _ in values] for name, values in times.items()}
        report(walls, cpu.median(dim=1).values.tolist(), len(program.instructions(0)))
        print(costs)
    dist.barrier()
    dist.destroy_process_group()


def transfers(program, rank, executor, steps: int) -> str:
    """What this rank's transfers cost it."""
    actions = [i.action for i in program.instructions(rank)]
    taken = {"SEND": [], "RECV": []}
    for _ in range(steps):
        executor.run()
        for index, begin, end in executor.records():
            if (kind := actions[index][:4]) in taken:
                taken[kind].append((end - begin) / 1e3)
    return f"a send takes {statistics.median(taken['SEND']):.1f} us, a receive of what is there {min(taken['RECV']):.1f} us"


def report(walls, cpus, instructions):
    ours = statistics.median(walls[OURS])
    print(f"rank 0, {instructions} instructions a step, {len(walls[OURS])} steps in turns")
    print(f"{'':26}{'median':>10}{'fastest':>10}{'to ours':>9}{'cpu of all ranks':>18}")
    for (name, values), cpu in zip(walls.items(), cpus, strict=True):
        median = statistics.median(values)
        print(
            f"{name:26}{median * 1e3:8.2f} ms{min(values) * 1e3:8.2f} ms{median / ours:8.2f}x{cpu * 1e3:15.2f} ms"
        )


def instruction_cost(folder: Path, steps: int):
    """One rank, no transfers: the step against the same operators called in a plain loop."""
    from ostinato import _plugin

    torch.set_num_threads(1)
    stages = 4
    program = _plugin.lower(*write_chain(folder / "one", [0] * stages, MICRO_BATCHES))
    executor = _plugin.Executor(program, 0, None, [0])
    weight = torch.ones(WIDTH, requires_grad=True)

    def forward(m, inputs):
        return weight * 2 if inputs is None else inputs[0] * 2

    def last(m, inputs):
        return inputs[0].sum()

    for s in range(stages):
        executor.set_stage(s, last if s == stages - 1 else forward)

    def plain():
        for m in range(MICRO_BATCHES):
            grad, kept, value = None, [], None
            for s in range(stages):
                leaf = (value.detach().requires_grad_(),) if s else None
                value = (last if s == stages - 1 else forward)(m, leaf)
                kept.append((leaf, value))
            for leaf, value in reversed(kept):
                value.backward(grad)
                grad = leaf[0].grad if leaf else None

    def typical(step):
        for _ in range(steps):
            step()
        return statistics.median(timed(step) for _ in range(steps))

    def beside():
        """Of one step: what is not inside a forward or a backward, which are the operators and the calls that
        start them."""
        return timed(executor.run) - sum(end - start for _, start, end in executor.records()) / 1e9

    count = len(program.instructions(0))
    ours = typical(executor.run)
    theirs = typical(plain)
    own = statistics.median(beside() for _ in range(steps))
    print(
        f"one rank, {count} computes: executor {ours / count * 1e6:.2f} us an instruction, {own / count * 1e6:.2f} us of them beside "
        f"forwards and backwards; the same operators in a plain Python loop {theirs / count * 1e6:.2f} us"
    )


def timed(step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--no-deepspeed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instruction_cost(Path(folder), options.steps)
        files = write_chain(Path(folder) / "plan", list(range(options.ranks)), MICRO_BATCHES, options.ranks)
        torch.multiprocessing.spawn(
            run, (options.ranks, folder, files, options.steps, not options.no_deepspeed), nprocs=options.ranks
        )


if __name__ == "__main__":
    main()
