# SPDX-License-Identifier: Apache-2.0
"""What torch's wrappers of modules do not allow in a pipeline.

one_in_flight(module)       # "DistributedDataParallel"; "": any number of micro-batches
must_run_whole(module)      # whether its backward cannot be split
innermost(torch.compile(m)) # m
keep_unsharded([module])    # for torch's own runtime, which splits it all the same
"""

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

FSDP = "torch.distributed.fsdp"
COMPILED = "torch._dynamo.eval_frame"
WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def one_in_flight(module: nn.Module) -> str:
    """The class of a wrapper that expects each forward's backward before the next forward: with more micro-batches in
    flight, DistributedDataParallel leaves gradients out without a word."""
    kinds = DistributedDataParallel, imported(FSDP, "FullyShardedDataParallel")
    return next((type(part).__name__ for part in module.modules() if isinstance(part, kinds)), "")


def must_run_whole(module: nn.Module) -> bool:
    """Of its backward: fully_shard() reduces the weights' gradients as soon as those of the inputs are there, and
    checkpoint_wrapper() would run the forward again in both halves."""
    kinds = imported(FSDP, "FSDPModule"), imported(WRAPPER, "CheckpointWrapper")
    return any(isinstance(part, kinds) for part in module.modules())


def innermost(module: nn.Module) -> nn.Module:
    """Under torch.compile() and checkpoint_wrapper(), whose own forward takes any arguments."""
    while True:
        if isinstance(module, imported(COMPILED, "OptimizedModule")):
            module = module._orig_mod
        elif isinstance(module, imported(WRAPPER, "ActivationWrapper")):
            module = module._checkpoint_wrapped_module
        else:
            return module


def keep_unsharded(modules: Iterable[nn.Module]) -> None:
    """torch loses gradients, without a word, where weights that fully_shard() has resharded after a forward meet a
    split backward."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, imported(FSDP, "FSDPModule")):
                part.set_reshard_after_forward(False, recurse=False)


def imported(module: str, kind: str) -> Any:
    """A class of a module that takes long to import; () where the script has not."""
    return getattr(sys.modules.get(module), kind, ())
