# SPDX-License-Identifier: Apache-2.0
"""What to profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ostinato.profile.machine.device import Cpu
from ostinato.restrictions import Restriction


def any_parameters(layers: Sequence[Any]) -> bool:
    """Of a PipelineModule that names no layers to checkpoint."""
    return any(True for layer in layers if isinstance(layer, nn.Module) for _ in layer.parameters())


@dataclass
class Job:
    """A chain of layers or a module, one micro-batch for it, and how often to measure."""

    layers: Sequence[Any] = ()  # nn.Module, DeepSpeed LayerSpec or TiedLayerSpec, or any callable
    inputs: Any = None  # of the first layer: a tensor, or tuples, lists and dicts of tensors; of a module: its arguments (graph.arguments())
    module: nn.Module | None = (
        None  # instead of layers: profiled operator by operator, with its branches; a TorchScript one by submodules
    )
    labels: Any = None  # second argument of loss_fn
    loss_fn: Callable | None = None  # counts as part of the last layer
    config: dict = field(default_factory=dict)  # DeepSpeed's: optimizer, precision, micro-batch size
    optimizer: Any = None  # one that the script made itself
    depth: int | None = (
        None  # of a TorchScript module: levels of submodules to look into; None: to where one calls several
    )
    optimizer_numbers: int | None = (
        None  # fp32 numbers that the optimizer keeps for each parameter; None: as config says, else Adam's
    )
    checkpoint_interval: int = 0  # PipelineModule's activation_checkpoint_interval
    # Whether it checkpoints these layers, where the interval is above 0.
    checkpointable: Callable[[Sequence[Any]], bool] = any_parameters
    autocast: torch.dtype | None = None  # that the engine runs layers under, but not the loss; None: without
    restrictions: Sequence[Restriction] = ()  # of the script's classes
    # By layer, what shows the weights that it shares: the script's module or LayerSpec; empty: `layers` do.
    held: Sequence[Any] = ()
    lengths: Sequence[int] = ()  # of other sequences that layers are measured with, too
    # Layers of each stage of DeepSpeed's own partition; empty: the script makes no pipeline.
    stages: Sequence[int] = ()
    micro_batches: int = 1  # of a step of that
    slices: int = (
        1  # ranks that hold parts of each layer (tensor slicing); `layers` are what one of them holds
    )
    read: int = 0  # ns that a batch takes to read
    # Cpu or Cuda of machine/device.py: layers and inputs are moved there.
    device: Any = field(default_factory=Cpu)
    ranks: int = 1  # of the world that the script has made
    beside: int = (
        0  # processes that compute the same layers while one is measured, on a CPU (measure/neighbours.py)
    )
    name: str = "model"
    kind: str = "cpu"  # of the device, as a placement's devices name it
    repeats: int = 20
    warm_up: int = 3
