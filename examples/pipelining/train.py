# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level model with torch.distributed.pipelining under a schedule of ostinato's. Nothing of
ostinato is imported here.

    torchrun --standalone --nproc-per-node 2 examples/pipelining/train.py --schedule schedule.csv --placement placement.toml
    python examples/pipelining/train.py                        # the same training in one process, to compare

torch reads the file with its own loader, which torchtitan calls for
`parallelism.pipeline_parallel_schedule_csv`.
"""

import argparse
import csv
import os
import re
import sys
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import cross_entropy, gelu

sys.path.append(str(Path(__file__).resolve().parent.parent / "gpt"))

from data import corpus, micro_batches  # noqa: E402  (examples/gpt)

WIDTH, CONTEXT = 64, 32


class Block(nn.Module):
    """(batch, time, width) -> the same; a byte sees those before it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(2 * WIDTH, 4 * WIDTH)
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        before = y.cumsum(1) / torch.arange(1, y.shape[1] + 1).view(1, -1, 1)
        return x + self.outer(gelu(self.inner(torch.cat([y, before], 2))))


def chain(layers: int) -> list[nn.Module]:
    """The same weights on every rank: 6 blocks between an embedding and a head, for 8 layers."""
    torch.manual_seed(0)
    return [nn.Embedding(256, WIDTH), *(Block() for _ in range(layers - 2)), nn.Linear(WIDTH, 256)]


def loss_of(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def rows_of(schedule: Path) -> list[list[str]]:
    """Of each rank what it computes: "2F0" is stage 2, forward, micro-batch 0."""
    with schedule.open(newline="") as file:
        return list(csv.reader(file))


class Pipeline:
    """This rank's stages under torch's schedule runtime."""

    def __init__(self, schedule: Path, placement: Path):
        dist.init_process_group("gloo")
        rows = rows_of(schedule)
        cuts = [stage["layers"] for stage in tomllib.loads(placement.read_text())["stages"]]
        cells = [re.match(r"(\d+)[FBIW](\d+)", cell) for cell in rows[dist.get_rank()]]
        self.mine = sorted({int(cell[1]) for cell in cells})
        self.last, self.micro_batches = len(cuts) - 1, 1 + max(int(cell[2]) for cell in cells)
        layers = chain(cuts[-1][1])
        modules = [nn.Sequential(*layers[slice(*cuts[stage])]) for stage in self.mine]
        self.parameters = [p for module in modules for p in module.parameters()]
        stages = [
            PipelineStage(module, stage, len(cuts), torch.device("cpu"))
            for stage, module in zip(self.mine, modules, strict=True)
        ]
        self.schedule = _PipelineScheduleRuntime(stages, self.micro_batches, loss_fn=loss_of)
        self.schedule._load_csv(str(schedule))

    def step(self, tokens, targets):
        """The mean loss, on the rank that computes it."""
        losses: list[torch.Tensor] = []
        words = {"target": targets, "losses": losses} if self.last in self.mine else {}
        self.schedule.step(*([tokens] if 0 in self.mine else []), **words)
        return torch.stack(losses).mean() if losses else None


class Alone:
    """The same model in one process."""

    def __init__(self, layers: int = 8):
        self.model, self.micro_batches = nn.Sequential(*chain(layers)), 8
        self.parameters = list(self.model.parameters())

    def step(self, tokens, targets):
        loss = loss_of(self.model(tokens), targets)
        loss.backward()
        return loss


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", type=Path, help="CSV of `ostinato lower --form compute`")
    parser.add_argument(
        "--placement",
        type=Path,
        default=Path("placement.toml"),
        help="its [[stages]] say which layers a stage has",
    )
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.schedule is None and "RANK" in os.environ:
        parser.error("several ranks need --schedule")
    training = Pipeline(args.schedule, args.placement) if args.schedule else Alone()
    optimizer = torch.optim.Adam(training.parameters, lr=0.003)
    data = micro_batches(corpus(1 << 20), 2 * training.micro_batches, CONTEXT)
    for step in range(args.steps):
        loss = training.step(*next(data))
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
    if args.schedule:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
