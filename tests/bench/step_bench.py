# SPDX-License-Identifier: Apache-2.0
"""A training step against its plan: DeepSpeed's engine with ostinato and without, on the same layers, ranks
and order (1F1B).

    PYTHONPATH=build/python python tests/bench/step_bench.py [--forward 10] [--backward 10] [--micro-batches 8] [--steps 8]

Four ranks, one layer each. A layer computes for real, and then waits until its forward or backward has taken
the given milliseconds. What PyTorch does around that wait (the loss, autograd, gradients of weights) takes 20
µs in a loop and half a millisecond after a sleep that has left the caches cold. So a block is measured first,
as a profile would: alone in its process, by a plain loop without any engine; the plan is made from these
times, and what a step takes beyond it is the engine's. Both engines live in the same processes and take turns
with a third, the executor without DeepSpeed (forwards and backwards only): what it takes beyond the plan is
ours. A step is cut into what the plan speaks of (forwards, backwards, transfers; from the common begin to the
end of the last rank), DeepSpeed's work after it (reduction of gradients, optimizer), and the rest of
train_batch (loss to all ranks, timers, ...).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from support.worlds import World  # noqa: E402

RANKS, WIDTH, BATCH = 4, 16, 4
PARTS = ("in the plan", "after it", "the rest", "step")
NAPS_END = 1e-4  # seconds before the end from which one looks at the clock: a sleep ends late


def wait_until(end: float) -> None:
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left - NAPS_END if left > NAPS_END else 0)


class Begin(torch.autograd.Function):
    """The identity; tells the layer when its backward begins."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.layer.begun = time.perf_counter()
        return gradient, None


class End(torch.autograd.Function):
    """The identity; its backward ends when that of the layer shall have ended."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        wait_until(ctx.layer.begun + ctx.layer.backward_s)
        return gradient, None


class Timed(nn.Module):
    def __init__(self, forward_s: float, backward_s: float):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.forward_s, self.backward_s, self.begun = forward_s, backward_s, 0.0

    def forward(self, x):
        end = time.perf_counter() + self.forward_s
        # The weight: the first layer's input takes no gradient.
        y = functional.linear(x, End.apply(self.linear.weight, self), self.linear.bias)
        y = Begin.apply(torch.tanh(y), self)
        wait_until(end)
        return y


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def measure(forward_s: float, backward_s: float, repeats: int = 40) -> tuple[float, float]:
    """Seconds of this rank's forward (with the loss on the last rank) and of its backward, alone: medians."""
    layer, (x, y) = Timed(forward_s, backward_s), next(batches())
    x.requires_grad_(dist.get_rank() > 0)
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        output = layer(x)
        output = functional.mse_loss(output, y) / 8 if dist.get_rank() == RANKS - 1 else output
        between, gradient = time.perf_counter(), torch.ones_like(output)
        start = time.perf_counter()
        output.backward(gradient)
        spent.append((between - begin, time.perf_counter() - start))
    return tuple(statistics.median(times) for times in zip(*spent, strict=True))


def make_engine(forward_s: float, backward_s: float, micro_batches: int, plan: str | None):
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    torch.manual_seed(dist.get_rank())
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    layers = [LayerSpec(Timed, forward_s, backward_s)] * RANKS
    with ostinato.deepspeed.enable(plan) if plan else nullcontext():
        model = PipelineModule(
            layers, num_stages=RANKS, loss_fn=functional.mse_loss, partition_method="uniform"
        )
        return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


class Stopwatch:
    """Cuts the steps of an engine into PARTS, in seconds."""

    def __init__(self, engine):
        from deepspeed.runtime.pipe import schedule

        self.engine, self.data, self.after_s, self.schedule_s = engine, batches(), 0.0, 0.0
        self._schedule = engine._exec_schedule
        engine._exec_schedule = self._timed_schedule
        engine._INSTRUCTION_MAP = dict(engine._INSTRUCTION_MAP)
        for kind in (schedule.ReduceTiedGrads, schedule.ReduceGrads, schedule.OptimizerStep):
            engine._INSTRUCTION_MAP[kind] = self._timed(engine._INSTRUCTION_MAP[kind])

    def _timed(self, function):
        def timed(*args, **kwargs):
            begin = time.perf_counter()
            function(*args, **kwargs)
            self.after_s += time.perf_counter() - begin

        return timed

    def _timed_schedule(self, pipe_schedule):
        begin = time.perf_counter()
        self._schedule(pipe_schedule)
        self.schedule_s = time.perf_counter() - begin

    def step(self) -> dict:
        """Seconds of one step, its loss, and the seconds that this process computed in it."""
        self.after_s = 0.0
        dist.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        loss = self.engine.train_batch(self.data).item()
        whole, cpu = time.perf_counter() - begin, time.process_time() - cpu
        seconds = (self.schedule_s - self.after_s, self.after_s, whole - self.schedule_s, whole)
        return dict(zip(PARTS, seconds, strict=True)) | {"loss": loss, "cpu": cpu}


class Bare:
    """The executor on the same layers, without DeepSpeed around it."""

    def __init__(self, forward_s: float, backward_s: float, files: tuple[str, str]):
        from ostinato import _plugin

        program, rank = _plugin.lower(*files), dist.get_rank()
        layer, data = Timed(forward_s, backward_s), [next(batches()) for _ in range(program.micro_batches)]

        def forward(m, inputs):
            output = layer(data[m][0] if inputs is None else inputs[0])
            return (
                functional.mse_loss(output, data[m][1]) / program.micro_batches
                if rank == RANKS - 1
                else output
            )

        self.executor = _plugin.Executor(
            program, rank, dist.new_group(list(range(RANKS))), list(range(RANKS))
        )
        self.executor.set_stage(rank, forward)

    def step(self) -> dict:
        dist.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        self.executor.run()
        whole, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return dict(zip(PARTS, (whole, 0.0, 0.0, whole), strict=True)) | {"cpu": cpu}


def train(
    forward_s: float, backward_s: float, micro_batches: int, steps: int, files: tuple[str, str]
) -> dict[str, list[dict]]:
    """By engine, its steps but the first two. `files`: of the plan and its placement."""
    watches = {
        "executor": Bare(forward_s, backward_s, files),
        "DeepSpeed": Stopwatch(make_engine(forward_s, backward_s, micro_batches, None)),
        "ostinato": Stopwatch(make_engine(forward_s, backward_s, micro_batches, files[0])),
    }
    taken = {name: [] for name in watches}
    for _ in range(steps + 2):
        for name, watch in watches.items():
            taken[name].append(watch.step())
    return {name: steps[2:] for name, steps in taken.items()}


def placement(times: list[tuple[float, float]]) -> str:
    """A chain; `times`: seconds of the forward and the backward of each rank."""
    text = 'format = "ostinato-placement/1"\nname = "chain"\ntime_unit = "s"\n'
    text += "".join(f'[[devices]]\nname = "rank{r}"\n' for r in range(RANKS))
    text += "".join(f'[[stages]]\nname = "{r}"\nlayers = [{r}, {r + 1}]\n' for r in range(RANKS))
    for r in range(RANKS):
        before, after = [f"{r - 1}.F"] * (r > 0), [f"{r}.F"] + [f"{r + 1}.B"] * (r + 1 < RANKS)
        for letter, kind, seconds, needs in (
            ("F", "forward", times[r][0], before),
            ("B", "backward", times[r][1], after),
        ):
            text += f'[[blocks]]\nname = "{r}.{letter}"\nstage = "{r}"\nkind = "{kind}"\ndevices = [{r}]\n'
            text += f"time = {seconds:.9f}\nafter = {json.dumps(needs)}\n"
    return text


def plan_of(folder: Path, text: str, micro_batches: int) -> tuple[tuple[str, str], float]:
    """1F1B: paths of its plan and placement, and its makespan in seconds."""
    from ostinato import _search

    plan, placement = folder / "plan.json", folder / "placement.toml"
    placement.write_text(text)
    arguments = ["search", str(placement), "--micro-batches", str(micro_batches), "--output", str(plan)]
    assert _search.main([*arguments, "--method", "1f1b"]) == 0
    return (str(plan), str(placement)), json.loads(plan.read_text())["makespan"] / 1e9


def report(ranks: list[dict[str, list[dict]]], blocks: list[tuple[float, float]], makespan: float) -> None:
    alone = ", ".join(f"{forward * 1e3:.2f} + {backward * 1e3:.2f}" for forward, backward in blocks)
    print(f"forward + backward alone, by rank: {alone} ms")
    print(
        f"planned from them {makespan * 1e3:.1f} ms; medians of {len(ranks[0]['ostinato'])} steps in turns, of each the rank that is done last"
    )
    columns = (*PARTS, "in the plan / planned", "step / planned", "cpu of 4 ranks")
    print(f"{'ms':12}" + "".join(f"{column:>{max(14, len(column) + 2)}}" for column in columns))
    medians = {}
    for name in ("executor", "ostinato", "DeepSpeed"):
        steps = list(zip(*(rank[name] for rank in ranks), strict=True))
        # The others wait for it in what comes after.
        last = [max(step, key=lambda rank: rank[PARTS[0]]) for step in steps]
        medians[name] = {part: statistics.median(rank[part] for rank in last) for part in PARTS}
        cpu = statistics.median(sum(r["cpu"] for r in step) for step in steps)
        figures = "".join(f"{medians[name][part] * 1e3:14.2f}" for part in PARTS)
        print(
            f"{name:12}{figures}{medians[name][PARTS[0]] / makespan:23.4f}{medians[name][PARTS[-1]] / makespan:16.4f}{cpu * 1e3:16.1f}"
        )
    ours, theirs = medians["ostinato"], medians["DeepSpeed"]
    print(f"DeepSpeed's step takes {theirs['step'] / ours['step']:.4f} times as long, its part in the plan "
          f"{theirs['in the plan'] / ours['in the plan']:.4f} times")  # fmt: skip
    losses = [[step["loss"] for step in ranks[0][name]] for name in ("ostinato", "DeepSpeed")]
    assert losses[0] == losses[1], "the two must lose alike, bit for bit"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forward", type=float, default=10.0, help="milliseconds of a forward")
    parser.add_argument("--backward", type=float, default=10.0, help="milliseconds of a backward")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    times = args.forward / 1e3, args.backward / 1e3
    with tempfile.TemporaryDirectory() as folder, World(RANKS) as world:
        blocks = world.run(measure, *times)
        files, makespan = plan_of(Path(folder), placement(blocks), args.micro_batches)
        report(world.run(train, *times, args.micro_batches, args.steps, files), blocks, makespan)


if __name__ == "__main__":
    main()
