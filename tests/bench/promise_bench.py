# SPDX-License-Identifier: Apache-2.0
"""What `ostinato plan` promises beside what is measured: five models that compute, on two ranks with a core
each.

    PYTHONPATH=build/release/python python tests/bench/promise_bench.py [gpt heavy-head mlp conv gru] [--micro-batches 16] [--steps 8]

The rival is what the user runs before: DeepSpeed's 1F1B on the script's own partition ("uniform"). Each model
goes through the commands that a user types (profile, plan, torchrun); trainings take turns, each in processes
of its own. `chosen` is the plan; `two chunks` the best of plans with two stages a rank at most, where no
layer moves: what more stages cost beside what the plan counts shows there. The machine must have two cores
that do nothing else.
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
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve()
RANKS, WARM_UP, TURNS = 2, 3, 2
PLANS = {"chosen": [], "two chunks": ["--only", "chunks", "--max-chunks", "2"]}


class Embedding(nn.Module):
    def __init__(self, words: int, width: int, context: int):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(torch.zeros(context, width))

    def forward(self, x):
        return self.words(x) + self.positions


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = (
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(rows, length, width)
        )
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Head(nn.Sequential):
    def __init__(self, width: int, words: int):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, words))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(x)))


class Residual(nn.Module):
    def __init__(self, channels: int, made: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, made, 3, stride, 1), nn.GroupNorm(8, made), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(made, made, 3, 1, 1), nn.GroupNorm(8, made))
        self.beside = nn.Conv2d(channels, made, 1, stride)

    def forward(self, x):
        return functional.relu(self.second(self.first(x)) + self.beside(x))


class Classes(nn.Linear):
    def forward(self, x):
        return super().forward(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cells = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return x + self.cells(x)[0]


def next_word(made, given):
    return functional.cross_entropy(made.flatten(0, -2), given.flatten())


def text(words: int, rows: int, length: int) -> Iterator:
    while True:
        x = torch.randint(words, (rows, length + 1))
        yield x[:, :-1].contiguous(), x[:, 1:].contiguous()


def vectors(rows: int, width: int) -> Iterator:
    while True:
        x = torch.randn(rows, width)
        yield x, x.roll(1, 1)


def images(rows: int) -> Iterator:
    while True:
        yield torch.randn(rows, 3, 64, 64), torch.randint(100, (rows,))


CONVOLUTIONS = [(3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
HIDDEN = (2048, 512, 1024, 4096, 512, 512, 2048, 1024)
MODELS = {  # [(layer, its arguments)], loss, data
    "gpt": (
        [(Embedding, 512, 192, 128), *[(Block, 192, 4)] * 8, (Head, 192, 512)],
        next_word,
        lambda: text(512, 4, 128),
    ),
    "heavy-head": (
        [(Embedding, 8192, 128, 64), *[(Block, 128, 4)] * 6, (Head, 128, 8192)],
        next_word,
        lambda: text(8192, 4, 64),
    ),
    "mlp": ([(Mlp, 512, hidden) for hidden in HIDDEN], functional.mse_loss, lambda: vectors(64, 512)),
    "conv": (
        [*((Residual, *sizes) for sizes in CONVOLUTIONS), (Classes, 128, 100)],
        functional.cross_entropy,
        lambda: images(4),
    ),
    "gru": (
        [(Embedding, 512, 128, 64), *[(Recurrent, 128)] * 2, *[(Block, 128, 4)] * 5, (Head, 128, 512)],
        next_word,
        lambda: text(512, 8, 64),
    ),
}


def train(arguments: list[str]) -> None:
    """One rank of a training: seconds of its steps."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    parser = argparse.ArgumentParser()
    parser.add_argument("--train", choices=MODELS)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed()
    layers, loss, data = MODELS[args.train]
    specs = [LayerSpec(*layer) for layer in layers]
    model = PipelineModule(
        specs, num_stages=RANKS, loss_fn=loss, partition_method="uniform", activation_checkpoint_interval=0
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    batches, seconds = data(), []
    for _ in range(WARM_UP + args.steps):
        begin = time.perf_counter()
        engine.train_batch(data_iter=batches)
        seconds.append(time.perf_counter() - begin)
    if args.record and engine.global_rank == 0:
        args.record.write_text(json.dumps(seconds[WARM_UP:]))
    deepspeed.comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # without the teardown of gloo's threads


def command(*words) -> str:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def compare(name: str, args, folder: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 4,  # of what the loader yields, DeepSpeed does not look at it
        "gradient_accumulation_steps": args.micro_batches,
        "steps_per_print": 10**6,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    configs = {"1F1B": folder / "config.json"}
    configs["1F1B"].write_text(json.dumps(config))
    profile = folder / "profile.json"
    script = f"--train {name} --deepspeed_config {configs['1F1B']}".split()
    command("ostinato", "profile", HERE, "--output", profile, "--", *script)
    planned = {}
    for tag, options in PLANS.items():
        files = [folder / f"{tag}.json", folder / f"{tag}.toml"]
        sizes = ["--devices", RANKS, "--micro-batches", args.micro_batches]
        planned[tag] = json.loads(
            command(
                "ostinato",
                "plan",
                profile,
                *sizes,
                *options,
                "--output",
                files[0],
                "--placement-output",
                files[1],
                "--json",
            )
        )
        configs[tag] = folder / f"{tag}.config.json"
        configs[tag].write_text(
            json.dumps({**config, "ostinato": dict(zip(("plan", "placement"), map(str, files), strict=True))})
        )
    seconds: dict[str, list[float]] = {tag: [] for tag in configs}
    for _ in range(TURNS):
        for tag, file in configs.items():
            record = folder / "seconds.json"
            launcher = f"torch.distributed.run --standalone --nproc-per-node {RANKS}".split()
            script = (
                f"--train {name} --steps {args.steps} --record {record} --deepspeed_config {file}".split()
            )
            command(*launcher, HERE, *script)
            seconds[tag] += json.loads(record.read_text())
    step = {tag: statistics.median(of_tag) for tag, of_tag in seconds.items()}
    for tag, plan in planned.items():
        promised = plan["baselines"]["1f1b_even_split"]["makespan"] / plan["makespan"]
        print(
            f"{name:12}{tag:12}{plan['chosen']:36} promised {promised:.3f}, measured {step['1F1B'] / step[tag]:.3f}"
            f" ({step['1F1B'] * 1e3:.0f} -> {step[tag] * 1e3:.0f} ms, planned {plan['makespan'] / 1e6:.0f})",
            flush=True,
        )


def main():
    if "--train" in sys.argv:
        return train(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    for name in args.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            compare(name, args, Path(folder))


if __name__ == "__main__":
    main()
