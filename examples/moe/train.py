# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT with a mixture of experts: pipeline stages, and experts spread over the replicas of each.

torchrun --nproc-per-node 4 examples/moe/train.py --deepspeed_config examples/moe/ds_config.json --steps 20
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups
from model import layers, loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpt"))
from data import corpus, micro_batches  # noqa: E402  # the folder beside this one


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--depth", type=int, default=3, help="blocks of attention and experts")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="bytes of text that the model sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write losses and seconds of the steps to this JSON file")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    replicas = dist.get_world_size() // args.stages
    groups._create_expert_and_data_parallel(replicas, pp_size=args.stages)
    parts = layers(
        args.depth, args.width, args.heads, args.context, args.experts, replicas, f"ep_size_{replicas}"
    )
    model = PipelineModule(
        parts, num_stages=args.stages, loss_fn=loss, partition_method="uniform", seed_layers=True
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    engine.has_moe_layers = True  # DeepSpeed knows that of its own class of layers alone: experts stay apart
    replica = engine.grid.get_data_parallel_rank()
    data = micro_batches(corpus(), engine.train_micro_batch_size_per_gpu(), args.context, args.seed + replica)

    losses, seconds = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        losses.append(engine.train_batch(data_iter=data).item())
        seconds.append(time.perf_counter() - begin)
        if engine.global_rank == 0:
            print(f"step {step:3d}  loss {losses[-1]:.4f}  {seconds[-1] * 1e3:7.1f} ms", flush=True)
    if args.record and engine.global_rank == 0:
        args.record.write_text(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
