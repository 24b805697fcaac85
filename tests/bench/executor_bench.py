"""A step of tiny stages: our executor against torch.distributed.pipelining's schedule runtime and DeepSpeed's engine.

    PYTHONPATH=build/release/python python tests/bench/executor_bench.py [--steps 60] [--ranks 2] [--no-deepspeed]

All run the same 1F1B order of the same layers over gloo, forwards and backwards only (no optimizer), in the same processes and
in turns, so that what else the machine does hits all of them. Ranks share the machine's cores: only the ratios count.
Also printed: what an instruction costs beside the operators, on one rank without transfers.
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


def layers(ranks: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(ranks)]


def loss_fn(output, target):
    return (output - target).pow(2).mean()


def batch():
    torch.manual_seed(1)
    return torch.randn(MICRO_BATCHES * BATCH, WIDTH), torch.randn(MICRO_BATCHES * BATCH, WIDTH)


def ostinato_step(program, rank, module):
    from ostinato import _plugin

    executor = _plugin.Executor(program, rank, dist.distributed_c10d._get_default_group(), list(range(program.ranks)))
    x, y = (t.chunk(MICRO_BATCHES) for t in batch())

    def forward(m, inputs):
        out = module(x[m] if inputs is None else inputs[0])
        return loss_fn(out, y[m]) / MICRO_BATCHES if rank == program.ranks - 1 else out

    executor.set_stage(rank, forward)
    return executor.run


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

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a build of minutes, plays no part here
    deepspeed.init_distributed("gloo")
    module = PipelineModule(layers(ranks), num_stages=ranks, loss_fn=loss_fn, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=list(module.parameters()),
        config={"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": MICRO_BATCHES,
                "optimizer": {"type": "Adam", "params": {"lr": 0.0, "torch_adam": True}}, "steps_per_print": 10**9})

    class ForwardsAndBackwards(ds.TrainSchedule):
        """Its 1F1B without the steps at the end that are no part of the pipeline."""

        def steps(self):
            left_out = (ds.OptimizerStep, ds.ReduceGrads, ds.ReduceTiedGrads)
            for commands in super().steps():
                yield [c for c in commands if not isinstance(c, left_out)]

    x, y = (t.chunk(MICRO_BATCHES) for t in batch())

    def step():
        engine.set_dataiterator(iter(zip(x, y)))
        engine.total_loss, engine._compute_loss = None, True
        engine._exec_schedule(ForwardsAndBackwards(MICRO_BATCHES, ranks, engine.stage_id))

    return step


def run(rank: int, ranks: int, folder: str, files, steps: int, with_deepspeed: bool):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), DS_ACCELERATOR="cpu",
                      MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    from ostinato import _plugin

    program = _plugin.lower(*files)
    runners = {"ostinato": ostinato_step(program, rank, layers(ranks)[rank]),
               "torch schedule runtime": torch_step(program, rank, layers(ranks)[rank], folder)}
    if with_deepspeed:
        runners["deepspeed engine"] = deepspeed_step(ranks)
    times = {name: [] for name in runners}
    for turn in range(steps + 3):
        for name, step in runners.items():
            dist.barrier()
            begin = time.perf_counter()
            step()
            if turn >= 3:
                times[name].append(time.perf_counter() - begin)
    if rank == 0:
        report(times, len(program.instructions(0)))
    dist.barrier()
    dist.destroy_process_group()


def report(times, instructions):
    ours = statistics.median(times["ostinato"])
    print(f"rank 0, {instructions} instructions a step, {len(next(iter(times.values())))} steps in turns")
    print(f"{'':26}{'median':>10}{'fastest':>10}{'to ours':>9}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:26}{median * 1e3:8.2f} ms{min(values) * 1e3:8.2f} ms{median / ours:8.2f}x")


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

    def fastest(step):
        best = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            best.append(time.perf_counter() - begin)
        return statistics.median(best)

    for step in (executor.run, plain):
        fastest(step)
    ours, theirs, count = fastest(executor.run), fastest(plain), len(program.instructions(0))
    print(f"one rank, {count} computes: executor {ours / count * 1e6:.1f} us an instruction, the same operators in a plain "
          f"Python loop {theirs / count * 1e6:.1f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--no-deepspeed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        instruction_cost(Path(folder), options.steps)
        files = write_chain(Path(folder) / "plan", list(range(options.ranks)), MICRO_BATCHES, options.ranks)
        torch.multiprocessing.spawn(
            run, (options.ranks, folder, files, options.steps, not options.no_deepspeed), nprocs=options.ranks)


if __name__ == "__main__":
    main()
