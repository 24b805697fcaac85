# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: arguments, layers, data, and how they write down what they have
trained.

torchrun --nproc-per-node 2 WAY.py --deepspeed_config FILE --results FILE
torchrun --nproc-per-node 2 WAY.py --late FILE --results FILE        # the same, read after the model is made
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.ops import __compatible_ops__
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

WIDTH, LAYERS, SIZE, BATCHES = 16, 8, 2, 4  # SIZE: of a micro-batch; BATCHES: micro-batches of a step

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--late")
parser.add_argument("--results", type=Path, required=True)
parser.add_argument("--folder", type=Path)  # of what is there before the run
parser.add_argument("--kind", default="")
deepspeed.add_config_arguments(parser)
args = parser.parse_args()
__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
torch.set_num_threads(1)
torch.manual_seed(0)
deepspeed.init_distributed("gloo", verbose=False)
rank = torch.distributed.get_rank()


class Block(nn.Module):
    """The first one takes longer than all the others: a plan gives it a rank for itself."""

    def __init__(self, index: int = 1):
        super().__init__()
        self.linear, self.pause = nn.Linear(WIDTH, WIDTH), 0.012 if index == 0 else 0.0

    def forward(self, x):
        time.sleep(self.pause)
        return x + torch.tanh(self.linear(x))


def blocks(kind: type = Block) -> list[LayerSpec]:
    return [LayerSpec(kind, index) for index in range(LAYERS)]


def made(layers=None, kind: type = PipelineModule, **more):
    options = {"num_stages": 2, "loss_fn": F.mse_loss, "partition_method": "uniform"}
    return kind(layers=layers or blocks(), **(options | more))


def initialize(model, **more):
    """deepspeed.initialize() as the arguments say."""
    if args.late:
        more["config"] = json.loads(Path(args.late).read_text())
    else:
        more["args"] = args
    return deepspeed.initialize(model=model, **more)


def data():
    generator = torch.Generator().manual_seed(7)
    while True:
        yield torch.randn(SIZE, WIDTH, generator=generator), torch.randn(SIZE, WIDTH, generator=generator)


def done(losses, engine, **more) -> None:
    """`losses`: of every step and evaluation."""
    weights = {
        name: hashlib.sha1(p.detach().contiguous().numpy()).hexdigest()
        for name, p in engine.module.named_parameters()
    }
    names = [name for name in weights if "ostinato" not in name]
    text = json.dumps(
        {
            "losses": [float(loss).hex() for loss in losses],
            "weights": {name: weights[name] for name in names},
            "more": more,
        }
    )
    args.results.with_suffix(f".{rank}").write_text(text)
    torch.distributed.barrier()
