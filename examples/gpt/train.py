# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT with DeepSpeed's pipeline engine.

torchrun --nproc-per-node 4 examples/gpt/train.py --deepspeed_config ds_config.json --steps 20
"""

import deepspeed
import torch
from data import corpus, micro_batches
from deepspeed.pipe import PipelineModule
from model import layers, loss
from training import options, train


def main():
    args = options(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    model = PipelineModule(
        layers(args.depth, args.width, args.heads, args.context),
        num_stages=args.stages,
        loss_fn=loss,
        partition_method=args.partition,
        activation_checkpoint_interval=0,
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    data = micro_batches(corpus(), engine.train_micro_batch_size_per_gpu(), args.context, args.seed)
    train(engine, data, args)


if __name__ == "__main__":
    main()
