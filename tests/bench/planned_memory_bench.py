# SPDX-License-Identifier: Apache-2.0
"""The peak that `ostinato plan` says for AlexNet and GPT-2 on two ranks, beside the one that training under
the plan has.

    PYTHONPATH=build/release/python python tests/bench/planned_memory_bench.py [--chunks 1] [--micro-batches 4]

Profile and plan are the model's own, but the times of all layers are taken to be alike, so that cuts do not
depend on the machine. Both peaks are bytes of live tensors: parameters, gradients, optimizer state,
activations, messages, buckets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "python"), str(TESTS), str(TESTS / "bench")]
import memory_jobs  # noqa: E402
from memory_jobs import Training, profiled  # noqa: E402
from support.worlds import World  # noqa: E402

ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}}
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}}}
BF16_ZERO = ADAM | {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 5_000_000},
}
ROWS = [
    ("AlexNet", "Adam", Training("larger_alexnet", config=ADAM)),
    ("AlexNet", "SGD, momentum", Training("larger_alexnet", config=SGD)),
    ("GPT-2", "Adam", Training("larger_gpt2", config=ADAM)),
    ("GPT-2", "SGD, momentum", Training("larger_gpt2", config=SGD)),
    ("GPT-2", "Adam, bf16, ZeRO-1", Training("larger_gpt2", config=BF16_ZERO)),
    ("GPT-2, recomputed", "Adam", Training("larger_gpt2", config=ADAM)),
]


def planned(folder: Path, training: Training, o: argparse.Namespace, recompute: bool) -> dict:
    from ostinato import _search

    profiled(training, folder / "profile.json")
    files = ["--placement-output", str(folder / "placement.toml"), "--output", str(folder / "plan.json")]
    devices = ["--devices", "2", "--micro-batches", str(o.micro_batches), "--time-limit", "5"]
    if recompute:
        placement = [
            "partition",
            str(folder / "profile.json"),
            *devices[:4],
            "--recompute",
            "always",
            "--output",
            files[1],
        ]
        assert _search.main(placement) == 0
        assert _search.main(["search", files[1], *devices[2:], "--output", files[3]]) == 0
    else:
        words = [
            "plan",
            str(folder / "profile.json"),
            *devices,
            "--all-devices",
            "--max-chunks",
            str(o.chunks),
        ]
        assert _search.main([*words, *files]) == 0
    return json.loads((folder / "plan.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=4)
    o = parser.parse_args()
    rows = []
    with World(2) as world:
        for model, optimizer, training in ROWS:
            with tempfile.TemporaryDirectory() as name:
                plan = planned(Path(name), training, o, "recomputed" in model)
                counted = world.run(
                    memory_jobs.train, training, str(Path(name) / "plan.json"), o.micro_batches
                )
            for rank, (peak, steps) in enumerate(zip(plan["peak_memory"], counted, strict=True)):
                where = "optimizer's step" if steps[-1].end > steps[-1].run else "forwards and backwards"
                figures = (
                    f"{peak / 2**20:.2f} MiB | {steps[-1].peak / 2**20:.2f} MiB | {peak / steps[-1].peak:.3f}"
                )
                rows.append(f"| {model} | {optimizer} | {rank} | {figures} | {where} |")
    print("| model | optimizer | rank | planned | measured | planned / measured | where |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
