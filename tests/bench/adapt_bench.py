# SPDX-License-Identifier: Apache-2.0
"""A rank that becomes slow in the middle of a run, and fast again: "adapt" beside the plan that stays, and
DeepSpeed's 1F1B.

    PYTHONPATH=build/release/python python tests/bench/adapt_bench.py [--slow 1.5 2.5] [--phase 100] [--every 10]
    ... --slow 2.36 --slow-rank 0 --micro-batches 32 --phase 40 --every 4   # job AR of StragglerAnalysis, scaled down

Four emulated ranks: layers sleep for their times, and sleep longer where and while a rank is slow. A phase is
so many steps; the rank is slow in the second of three, and the script saves a checkpoint in the middle of
each. `least` is the planner's, for the true speeds.

Job AR (ByteDance-Seed/StragglerAnalysis 8efcd7f, data/timeline-AR.json.gz, 4 stages, 32 micro-batches): medians of
0.218 s and 0.383 s a forward and a backward on 15 of its 16 pairs of stage and replica, 0.546 s and 0.869 s on the first
stage of the first replica.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, LAYERS, FORWARD, BACKWARD, WIDTH, SETTLED = 4, 24, 0.002, 0.004, 8, 20
SECTION = {
    "auto": True,
    "output": "out",
    "fallback": False,
    "search": {"max_chunks": 1, "time_limit": 2},
    "timeout_s": 120,
}


def train(arguments: list[str]) -> None:
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule
    from emulated_layers import Sleep

    parser = argparse.ArgumentParser()
    parser.add_argument("--train", type=float)  # how many times as slow
    parser.add_argument("--phase", type=int)
    parser.add_argument("--slow-rank", type=int)
    parser.add_argument("--local_rank", type=int)
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed()
    now = 1.0

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return x + super().forward(Sleep.apply(x, FORWARD * now, BACKWARD * now))

    specs = [LayerSpec(Layer, WIDTH, WIDTH) for _ in range(LAYERS)]
    options = {
        "loss_fn": torch.nn.functional.mse_loss,
        "partition_method": "uniform",
        "activation_checkpoint_interval": 0,
    }
    model = PipelineModule(specs, num_stages=RANKS, **options)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    if Path("saved/latest").is_file():
        engine.load_checkpoint("saved")
    batches = iter(lambda: (torch.ones(1, WIDTH), torch.zeros(1, WIDTH)), None)
    while engine.global_steps < 3 * args.phase:
        step = engine.global_steps
        now = args.train if engine.global_rank == args.slow_rank and step // args.phase == 1 else 1.0
        begin = time.perf_counter()
        engine.train_batch(data_iter=batches)
        if engine.global_rank == 0:
            with open("seconds", "a") as seconds:
                seconds.write(f"{step} {time.perf_counter() - begin}\n")
        if (step + 1) % args.phase == args.phase // 2:
            engine.save_checkpoint("saved")
    deepspeed.comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # without the teardown of gloo's threads


def run(section: dict | None, slow: float, args: argparse.Namespace) -> tuple[list[float], str]:
    """Milliseconds of a step at the end of each phase, and what rank 0 said of its plans."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": args.micro_batches,
        "steps_per_print": 10**6,
    }
    config["optimizer"] = {"type": "SGD", "params": {"lr": 0.001}}
    config |= {"ostinato": section} if section else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        words = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(RANKS),
            str(Path(__file__).resolve()),
        ]
        given = ["--train", slow, "--phase", args.phase, "--slow-rank", args.slow_rank]
        given += ["--deepspeed_config", "config.json"]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words, *map(str, given)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        last = {
            int(step): float(took)
            for step, took in map(str.split, (folder / "seconds").read_text().splitlines())
        }
    phase = args.phase
    ends = [[last[step] for step in range((at + 1) * phase - SETTLED, (at + 1) * phase)] for at in range(3)]
    said = [
        line
        for line in done.stdout.splitlines()
        if "as planned" in line or "since the move" in line or "new plan" in line
    ]
    return [1e3 * statistics.median(times) for times in ends], "\n".join(said)


def least(slow: float, args: argparse.Namespace) -> float:
    """Milliseconds of the pipeline's part of a step, on the best stages for the true speeds."""
    import ostinato
    from ostinato import _profiler

    profile = _profiler.Profile()
    profile.model = "emulated"
    profile.model_sha256 = "0" * 64
    profile.timer = "cpu"
    profile.micro_batch_size = 1
    profile.set_device(name="cpu", kind="cpu", driver="", torch="", cuda="", clocks="")
    for index in range(LAYERS):
        row = _profiler.LayerCost()
        row.index, row.name, row.same_as = index, f"{index}:Layer", -1
        row.forward, row.backward = (
            _profiler.spread_of([round(seconds * 1e9)]) for seconds in (FORWARD, BACKWARD)
        )
        profile.layers = [*profile.layers, row]
    profile.completeness.complete = True
    devices = (
        'format = "ostinato-devices/1"\nname = "true"\n[[kinds]]\nname = "usual"\n'
        + f'[[kinds]]\nname = "slow"\nspeed = {1 / slow}\n'
    )
    devices += "".join(
        f'[[nodes]]\nkind = "{"slow" if rank == args.slow_rank else "usual"}"\ndevices = 1\n'
        for rank in range(RANKS)
    )
    on = ostinato.Devices.from_text(devices)
    found = ostinato.plan(
        ostinato.Profile.from_text(profile.json()),
        devices=on,
        micro_batches=args.micro_batches,
        max_chunks=1,
        all_devices=True,
    )
    return found.makespan / 1e6


def main() -> None:
    if "--train" in sys.argv:
        return train(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", type=float, nargs="+", default=[1.5, 2.5])
    parser.add_argument("--phase", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    args = parser.parse_args()
    runs = {
        "1F1B": None,
        "the plan stays": SECTION,
        "adapt": SECTION | {"adapt": {"every": args.every, "move": True}},
    }
    for slow in args.slow:
        usual, then = least(1, args), least(slow, args)
        print(
            f"rank {args.slow_rank} {slow} times as slow in the second phase; least {usual:.0f}, {then:.0f}, {usual:.0f} ms",
            flush=True,
        )
        for name, section in runs.items():
            steps, said = run(section, slow, args)
            print(
                f"  {name:16}"
                + ", ".join(f"{step:.0f}" for step in steps)
                + " ms a step at the end of the phases",
                flush=True,
            )
        print(said, flush=True)


if __name__ == "__main__":
    main()
