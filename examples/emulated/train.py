# SPDX-License-Identifier: Apache-2.0
"""Trains layers that sleep for given times (emulation) with DeepSpeed's pipeline engine.

torchrun --nproc-per-node 4 examples/emulated/train.py --deepspeed_config ds_config.json --steps 10
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
from deepspeed.pipe import PipelineModule
from model import layers, loss


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--unit", type=float, default=0.001, help="seconds of a forward of cost 1")
    parser.add_argument("--record", type=Path, help="write losses and seconds of the steps to this JSON file")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def micro_batches(size: int, width: int):
    """Endless (inputs, targets), each (size, width): the same sequence on every rank."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(size, width, generator=generator), torch.randn(size, width, generator=generator)


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed()
    model = PipelineModule(
        layers(args.width, args.unit), num_stages=args.stages, loss_fn=loss, partition_method="parameters"
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    data = micro_batches(engine.train_micro_batch_size_per_gpu(), args.width)

    losses, seconds = [], []
    for _ in range(args.steps):
        torch.distributed.barrier()
        begin = time.perf_counter()
        losses.append(engine.train_batch(data_iter=data).item())
        seconds.append(time.perf_counter() - begin)
    if engine.global_rank == 0:
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, fastest step {min(seconds) * 1e3:.1f} ms", flush=True
        )
        if args.record:
            args.record.write_text(json.dumps({"losses": losses, "seconds": seconds}))
    leave()


def leave():
    """Ends the process together with the other ranks, without tearing down gloo's threads: groups that
    DeepSpeed makes keep theirs alive, and now and then a rank aborts on them ("terminate called without an
    active exception")."""
    deepspeed.comm.barrier()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
