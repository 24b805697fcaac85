# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT with a mixture of experts: pipeline stages, and experts spread over the replicas of each.

torchrun --nproc-per-node 4 examples/moe/train.py --deepspeed_config examples/moe/ds_config.json --steps 20
"""

import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups

# Data, model and training are the GPT's.
sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from data import corpus, micro_batches
from experts import layers
from model import loss
from training import options, train


def main():
    parser = options(__doc__)
    parser.add_argument("--experts", type=int, default=4)
    parser.set_defaults(stages=2, depth=3, width=64, context=64, partition="uniform")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    replicas = dist.get_world_size() // args.stages
    groups._create_expert_and_data_parallel(replicas, pp_size=args.stages)
    parts = layers(
        args.depth, args.width, args.heads, args.context, args.experts, replicas, f"ep_size_{replicas}"
    )
    model = PipelineModule(
        parts, num_stages=args.stages, loss_fn=loss, partition_method=args.partition, seed_layers=True
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    engine.has_moe_layers = True  # DeepSpeed sets it only for its own class of layers: experts stay apart
    replica = engine.grid.get_data_parallel_rank()
    data = micro_batches(corpus(), engine.train_micro_batch_size_per_gpu(), args.context, args.seed + replica)
    train(engine, data, args)


if __name__ == "__main__":
    main()
