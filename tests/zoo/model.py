# SPDX-License-Identifier: Apache-2.0
"""What the zoo knows of a model."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Model:
    """`layers` makes the list that a script gives to PipelineModule; `batch` one micro-batch, (inputs,
    labels), from a generator.

    `between`: what a script does to its PipelineModule before deepspeed.initialize(); `after`: to the engine
    after it. `pipeline`: other arguments of PipelineModule. `config`: other keys of the DeepSpeed
    configuration. `kind`: PipelineModule, or the script's own class of it. `more_layers`: those that `kind`
    adds. `shardable`: its first and last layer can be cut over ranks. `optimizer`: its name for DeepSpeed, or
    a function of the model.
    """

    name: str
    layers: Callable[[], list]
    batch: Callable[[torch.Generator], tuple]
    loss: Callable
    between: Callable | None = None
    after: Callable | None = None
    pipeline: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    kind: Callable | None = None
    more_layers: int = 0
    shardable: bool = False
    optimizer: str | Callable = "Adam"
    keeps_contract: bool = True  # of docs/deepspeed.md: layers write to nothing but their buffers

    def batches(self, seed: int):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self.batch(generator)

    def layer_count(self) -> int:
        return len(self.layers()) + self.more_layers
