# SPDX-License-Identifier: Apache-2.0
"""Trains adapters on a frozen model of Hugging Face's transformers, in a pipeline.

    torchrun --standalone --nproc-per-node 2 examples/lora/train.py --deepspeed_config examples/lora/ds_config.json --save out/lora

`--model` is a checkpoint's folder, or one with only a config.json: the weights are then drawn.
"""

import argparse
import sys
from pathlib import Path

import deepspeed
import torch
from adapter import adapt
from deepspeed.pipe import PipelineModule
from ostinato import hf
from transformers import AutoConfig

HF = Path(__file__).resolve().parent.parent / "hf"
sys.path.append(str(HF.parent))

from hf.train import batches  # noqa: E402  (examples/hf)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=HF, help="folder with a config.json")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4, help="of the adapters")
    parser.add_argument("--save", type=Path, help="leave the adapters' weights there")
    parser.add_argument("--local_rank", type=int)
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed()
    source = args.model if list(args.model.glob("*.safetensors")) else AutoConfig.from_pretrained(args.model)
    layers = hf.layers(
        source, inputs=("input_ids", "attention_mask"), change=lambda model: adapt(model, args.rank)
    )
    model = PipelineModule(
        layers, num_stages=args.stages, loss_fn=hf.loss(source), partition_method="uniform"
    )
    learning = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=learning)
    print(
        f"rank {engine.global_rank}: {sum(p.numel() for p in learning)} of {sum(p.numel() for p in model.parameters())} parameters learn"
    )
    data = batches(engine.train_micro_batch_size_per_gpu(), context=64)
    for step in range(args.steps):
        loss = engine.train_batch(data_iter=data).item()
        if engine.global_rank == 0:
            print(f"step {step}  loss {loss:.4f}", flush=True)
    if args.save:
        hf.save(engine, args.save, learned=True)
        if engine.global_rank == 0:
            print(f"saved to {args.save}", flush=True)
    deepspeed.comm.barrier()


if __name__ == "__main__":
    main()
