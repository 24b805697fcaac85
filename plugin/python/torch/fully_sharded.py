# SPDX-License-Identifier: Apache-2.0
"""Stages under fully_shard(): a step gathers their weights and keeps them, and reduces their gradients once.

parts = outermost(pipe)
keep_unsharded(parts)                 # where the plan splits backwards
with reduced_once(parts):
    executor.run()                    # forwards and backwards of all micro-batches
reshard(parts)                        # after forwards alone

fully_shard() alone would reduce in every backward, as soon as the gradients of the inputs are there: once for each
micro-batch, and before the second half of a split backward. torch's own pipeline runtime does as this does.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import nn

from .wrappers import FSDP, imported


def outermost(module: nn.Module) -> list[Any]:
    """Modules under fully_shard() that are in no other one. A step asks, so it walks as kinds_of() does."""
    kind = imported(FSDP, "FSDPModule")
    if kind == ():
        return []
    found, seen, left = [], {module}, [module]
    while left:
        part = left.pop()
        if isinstance(part, kind):
            found.append(part)
            continue
        for child in reversed(part._modules.values()):
            if child is not None and child not in seen:
                seen.add(child)
                left.append(child)
    return found


def keep_unsharded(modules: Iterable[nn.Module]) -> None:
    """Between a forward and the second half of its backward, which loses gradients, without a word, where weights
    were resharded after the forward."""
    for module in modules:
        for part in outermost(module):
            part.set_reshard_after_forward(False)


def reshard(parts: Iterable[Any]) -> None:
    for part in parts:
        for module in part.modules():
            if isinstance(module, imported(FSDP, "FSDPModule")):
                module.reshard()


@contextmanager
def reduced_once(parts: list[Any]) -> Iterator[None]:
    """Around a step, on all replicas."""
    for part in parts:
        part.set_is_last_backward(False)
        part.set_reshard_after_backward(False)
        part.set_requires_gradient_sync(False)
    yield
    for part in parts:
        _reduce(part)


def _reduce(part: Any) -> None:
    from torch.distributed.pipelining.stage import _PipelineStageBase

    # All that it reads of a stage where gradients are not scaled.
    stage: Any = SimpleNamespace(submod=part)
    _PipelineStageBase.perform_reduce_grad(stage, grad_scale_factor=1)
