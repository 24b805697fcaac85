# SPDX-License-Identifier: Apache-2.0
"""What torch's wrappers of modules do not allow in a pipeline.

kinds = kinds_of(module)
one_in_flight(kinds)        # "DistributedDataParallel"; "": any number of micro-batches
must_run_whole(kinds)       # whether its backward cannot be split
innermost(torch.compile(m)) # m
"""

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

FSDP = "torch.distributed.fsdp"
COMPILED = "torch._dynamo.eval_frame"
WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def kinds_of(module: nn.Module) -> set[type]:
    """Of all modules in it. A step looks at thousands of modules, for which modules() takes milliseconds."""
    seen, left = {module}, [module]
    while left:
        for child in left.pop()._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                left.append(child)
    return set(map(type, seen))


def one_in_flight(kinds: Iterable[type]) -> str:
    """The class of a wrapper that expects each forward's backward before the next forward: with more micro-batches in
    flight, DistributedDataParallel leaves gradients out without a word, as does replicate() on top of it."""
    found = (
        DistributedDataParallel,
        imported(FSDP, "FullyShardedDataParallel"),
        imported("torch.distributed._composable.replicate", "DDP"),
    )
    return next((kind.__name__ for kind in kinds if issubclass(kind, found)), "")


def must_run_whole(kinds: Iterable[type]) -> bool:
    """Of a backward: checkpoint_wrapper() would run the forward again in both halves."""
    return any(issubclass(kind, imported(WRAPPER, "CheckpointWrapper")) for kind in kinds)


def innermost(module: nn.Module) -> nn.Module:
    """Under torch.compile() and checkpoint_wrapper(), whose own forward takes any arguments."""
    while True:
        if isinstance(module, imported(COMPILED, "OptimizedModule")):
            module = module._orig_mod
        elif isinstance(module, imported(WRAPPER, "ActivationWrapper")):
            module = module._checkpoint_wrapped_module
        else:
            return module


def imported(module: str, kind: str) -> Any:
    """A class of a module that takes long to import; () where the script has not."""
    return getattr(sys.modules.get(module), kind, ())
