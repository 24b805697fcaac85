# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT with DeepSpeed's pipeline engine.

torchrun --nproc-per-node 4 examples/gpt/train.py --deepspeed_config ds_config.json --steps 20
"""

import argparse
import atexit
import json
import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
from data import corpus, micro_batches
from deepspeed.pipe import PipelineModule
from model import layers, loss


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--depth", type=int, default=8, help="transformer blocks")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, help="bytes of text that the model sees")
    parser.add_argument("--partition", default="parameters", help="DeepSpeed's partition_method")
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
    model = PipelineModule(
        layers(args.depth, args.width, args.heads, args.context),
        num_stages=args.stages,
        loss_fn=loss,
        partition_method=args.partition,
        activation_checkpoint_interval=0,
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    data = micro_batches(corpus(), engine.train_micro_batch_size_per_gpu(), args.context, args.seed)

    losses, seconds = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        losses.append(engine.train_batch(data_iter=data).item())
        seconds.append(time.perf_counter() - begin)
        if engine.global_rank == 0:
            print(f"step {step:3d}  loss {losses[-1]:.4f}  {seconds[-1] * 1e3:7.1f} ms", flush=True)
    if args.record and engine.global_rank == 0:
        args.record.write_text(json.dumps({"losses": losses, "seconds": seconds}))
    leave()


def leave():
    """Ends the process together with the others, without the teardown of gloo's threads: groups that
    DeepSpeed makes keep theirs alive, and now and then a rank aborts on them ("terminate called without an
    active exception")."""
    deepspeed.comm.barrier()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
