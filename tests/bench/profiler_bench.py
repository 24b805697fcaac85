# SPDX-License-Identifier: Apache-2.0
"""What profiling costs a training step: our recorder and allocator against torch.profiler, in one run.

    PYTHONPATH=build/release/python python tests/bench/profiler_bench.py [--steps 15] [--width 256]

A 12-layer transformer on one thread. Each turn runs a bare step and the same step under each profiler, so
that what else the machine does hits all of them alike. Processor time of the process is compared, not wall
time: on a shared machine that is the part that is the profiler's. Starting and stopping a profiler and
reading its results are not counted, on either side. (torch.profiler logs two lines a turn to standard error.)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from ostinato import _profiler

LAYERS, BATCH, TOKENS = 12, 4, 128
WARM_UP = 3


def transformer(width: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS), torch.randn(BATCH, TOKENS, width)


@contextmanager
def recorded(recorder: _profiler.OperatorRecorder):
    """Every operator, with bytes, times and the tie from backward to forward."""
    _profiler.install_allocator()
    recorder.clear()
    recorder.start()
    recorder.begin_pass(0, "forward")
    try:
        yield
    finally:
        recorder.end_pass()
        recorder.stop()
        _profiler.remove_allocator()


def torch_profiler() -> AbstractContextManager:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        acc_events=True,
    )


def timed_step(model: nn.Module, inputs: torch.Tensor, around: AbstractContextManager) -> int:
    """Nanoseconds of processor time of a forward and a backward, without entering and leaving `around`."""
    with around:
        begin = time.process_time_ns()
        model(inputs).square().mean().backward()
        return time.process_time_ns() - begin


def compare(
    profilers: dict[str, Callable[[], AbstractContextManager]], steps: int, width: int
) -> dict[str, list[int]]:
    model, inputs = transformer(width)
    times: dict[str, list[int]] = {name: [] for name in profilers}
    for turn in range(WARM_UP + steps):
        for name, around in profilers.items():
            taken = timed_step(model, inputs, around())
            if turn >= WARM_UP:
                times[name].append(taken)
    return times


def slowdown(times: list[int], bare: list[int]) -> float:
    """Median over the turns of profiled over bare, less 1."""
    return statistics.median(mine / base for mine, base in zip(times, bare, strict=True)) - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(1)
    recorder = _profiler.OperatorRecorder()
    profilers = {
        "bare": nullcontext,
        "ostinato": lambda: recorded(recorder),
        "torch.profiler": torch_profiler,
    }
    times = compare(profilers, args.steps, args.width)
    calls = sum(row.calls for row in recorder.rows())
    print(f"{LAYERS} layers of width {args.width}, {calls} operators a step, {args.steps} turns")
    for name, samples in times.items():
        print(
            f"{name:16} {statistics.median(samples) / 1e6:9.2f} ms {100 * slowdown(samples, times['bare']):+7.2f} %"
        )
    ours, theirs = (slowdown(times[name], times["bare"]) for name in ("ostinato", "torch.profiler"))
    print(f"our slowdown / torch.profiler's: {ours / theirs:.2f}, {recorder.dropped} events dropped")


if __name__ == "__main__":
    main()
