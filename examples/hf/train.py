# SPDX-License-Identifier: Apache-2.0
"""Trains a causal language model of Hugging Face's transformers on the bytes of Python's standard library, in
a pipeline.

    torchrun --standalone --nproc-per-node 2 examples/hf/train.py --deepspeed_config examples/hf/ds_config.json --save out/hf

`--model` is a checkpoint's folder, or one with only a config.json: the weights are then drawn.
"""

import argparse
import sysconfig
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from ostinato import hf
from transformers import AutoConfig


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="folder with a config.json")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--context", type=int, default=64, help="bytes of text that the model sees")
    parser.add_argument("--save", type=Path, help="leave a checkpoint that from_pretrained() reads")
    parser.add_argument("--local_rank", type=int)
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def batches(size: int, context: int):
    """Endless ((tokens, attention mask), labels): the same on every rank. Labels are the tokens: the model's
    loss shifts them."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(0, len(text) - context, (size,), generator=generator)
        tokens = torch.stack([text[start : start + context] for start in starts.tolist()]).long()
        yield (tokens, torch.ones_like(tokens)), tokens


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed()
    source = args.model if list(args.model.glob("*.safetensors")) else AutoConfig.from_pretrained(args.model)
    model = PipelineModule(
        hf.layers(source, inputs=("input_ids", "attention_mask")),
        num_stages=args.stages,
        loss_fn=hf.loss(source),
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    data = batches(engine.train_micro_batch_size_per_gpu(), args.context)
    for step in range(args.steps):
        loss = engine.train_batch(data_iter=data).item()
        if engine.global_rank == 0:
            print(f"step {step}  loss {loss:.4f}", flush=True)
    if args.save:
        hf.save(engine, args.save)
        if engine.global_rank == 0:
            print(f"saved to {args.save}", flush=True)
    deepspeed.comm.barrier()


if __name__ == "__main__":
    main()
