# SPDX-License-Identifier: Apache-2.0
"""Training scripts for the profiler's tests: plain DeepSpeed, written to a folder of the test."""

import json
import textwrap

CONFIG = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
}

TRAIN = """
import argparse
import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

def batches():
    while True:
        yield torch.ones(3, 8), torch.ones(3, 4)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    print("the script prints")
    deepspeed.init_distributed()
    layers = [LayerSpec(nn.Linear, 8, args.width), nn.ReLU(), LayerSpec(nn.Linear, args.width, 4), torch.tanh]
    model = PipelineModule(layers, num_stages=4, loss_fn=nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=list(model.parameters()))
    assert engine.train_micro_batch_size_per_gpu() == 3 and engine.gradient_accumulation_steps() == 2
    assert engine.is_first_stage() and not engine.is_last_stage() and not hasattr(engine, "no_such_thing")
    engine.train_batch(data_iter=batches())
    raise AssertionError("the script goes on after its first step")

if __name__ == "__main__":
    main()
"""


def write(folder, text=TRAIN, config=CONFIG):
    """(script, configuration) in the folder."""
    script, settings = folder / "train.py", folder / "ds_config.json"
    script.write_text(textwrap.dedent(text))
    settings.write_text(json.dumps(config))
    return script, settings
