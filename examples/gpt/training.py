# SPDX-License-Identifier: Apache-2.0
"""What the training scripts of the byte-level GPTs share: options, and the loop."""

import argparse
import atexit
import json
import os
import sys
import time
from pathlib import Path

import deepspeed


def options(text: str) -> argparse.ArgumentParser:
    """`text`: what the script does."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--depth", type=int, default=8, help="transformer blocks")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, help="bytes of text that the model sees")
    parser.add_argument("--partition", default="parameters", help="DeepSpeed's partition_method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write losses and seconds of the steps to this JSON file")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    deepspeed.add_config_arguments(parser)
    return parser


def train(engine, data, args):
    """Trains, and ends the process."""
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
    """Ends the process together with the other ranks, without tearing down gloo's threads: groups that
    DeepSpeed makes keep theirs alive, and now and then a rank aborts on them ("terminate called without an
    active exception")."""
    deepspeed.comm.barrier()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
