# SPDX-License-Identifier: Apache-2.0
"""What a plan, its group and its stages must be to run here.

program = lowered("plan.json", None)     # with the placement.toml beside it
rank, ranks = place_in(None, program)    # this process among the plan's devices
check_copies(program)                    # PipelineError says what does not fit, and what would
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ostinato.autograd import strangers
from ostinato.errors import Error, counted
from ostinato.groups import backends_of
from ostinato.nn import ShardedLogits
from torch import nn
from torch.utils._pytree import tree_leaves

from ostinato import _plugin

from .ties import Tie
from .wrappers import one_in_flight


class PipelineError(Error, RuntimeError):
    """A plan that does not fit this run; `str()` says what is wrong and what would be right."""


def lowered(plan: str | Path, placement: str | Path | None, micro_batches: int = 0):
    """The program of a plan, with its repetend repeated for `micro_batches` if it has fewer.

    Raises ValueError with file and line where plan and placement do not fit.
    """
    return _plugin.lower(str(plan), str(placement or Path(plan).with_name("placement.toml")), micro_batches)


def place_in(group: dist.ProcessGroup | None, program) -> tuple[int, list[int]]:
    """This process's pipeline rank, and the global ranks of the pipeline. Raises PipelineError if their number
    is wrong."""
    if not dist.is_initialized() and group is None and program.ranks == 1:
        return 0, [0]
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise PipelineError(
            f"group is a {type(group).__name__}: expected a process group, as mesh.get_group()"
        )
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if len(ranks) != program.ranks:
        raise PipelineError(
            f'placement "{program.placement_name}" has {counted(program.ranks, "device")}, but the group has {counted(len(ranks), "rank")}'
        )
    return ranks.index(dist.get_rank()), ranks


def check_device(device: torch.device, group: dist.ProcessGroup | None = None) -> None:
    """Raises PipelineError where the group cannot send what is on the device."""
    if device.type not in backends_of(group):
        raise PipelineError(
            f'the stages are on "{device}", but the process group has {dist.get_backend_config(group)}, which sends no tensors from there: pass '
            'device=... to the pipeline, or call init_process_group("cpu:gloo,cuda:nccl")'
        )


def check_copies(program) -> None:
    """Raises PipelineError where two stages hold the same layers: nothing would add their gradients."""
    held: dict[Sequence[int], str] = {}
    for stage in program.stages:
        layers = stage.layers
        if layers and layers in held:
            raise PipelineError(
                f'stages "{held[layers]}" and "{stage.name}" hold the same layers, and here nothing adds the gradients of both copies: '
                "run a plan of two directions with DeepSpeed's engine, or place each layer once"
            )
        held[layers] = stage.name


def check_ties(ties: list[Tie]) -> None:
    """Raises PipelineError where a shared weight would be cut into parts, or is several parameters, each of which an
    optimizer would change wherever it is."""
    for tie in ties:
        if tie.separate:
            raise PipelineError(
                f"{tie} are different parameters in the same memory, which ranks do not share: let both layers register one and the same "
                "torch.nn.Parameter (head.weight = embedding.weight)"
            )
        if tie.sharded:
            raise PipelineError(
                f"{tie} share a weight, but one of them is in a sharded stage, whose parts would train separately: "
                "give each layer its own weight, or place both in stages that are not sharded"
            )


def check_wrapped(stage: str, kinds: Iterable[type]) -> None:
    """Raises PipelineError for wrappers that expect each forward's backward before the next forward. `kinds`: of
    the modules in the stage."""
    if kind := one_in_flight(kinds):
        raise PipelineError(
            f'stage "{stage}" holds a {kind}, which allows one micro-batch in flight: build the stage without it, and average the gradients '
            "over the ranks that hold this stage after step(), or use torch.distributed.fsdp.fully_shard()"
        )


@contextmanager
def changes_named(stage: str) -> Iterator[None]:
    """Names the stage whose first layer changes its input in place; torch does not."""
    try:
        yield
    except RuntimeError as error:
        if "leaf Variable that requires grad" not in str(error):
            raise
        raise PipelineError(
            f'stage "{stage}" changes its input in place, where the graph of the stages begins: let its first layers work out of place '
            f"(inplace=False), or clone the input first; torch says: {error}"
        ) from error


def check_trained(stage: str, module: nn.Module) -> None:
    """Raises PipelineError where a stage without a backward block has something to train."""
    if any(parameter.requires_grad for parameter in module.parameters()):
        raise PipelineError(
            f'stage "{stage}" has trainable parameters, but no backward in the plan: give it a backward block in the placement and search again, '
            "or freeze them (requires_grad_(False))"
        )


def checked_loss(stage: str, loss_fn: Callable | None, outputs: Any, targets: Any, rank: int) -> torch.Tensor:
    """Of a micro-batch; without loss_fn, what the stage returns. Raises PipelineError where that is no loss."""
    try:
        loss = outputs if loss_fn is None else loss_fn(outputs, targets)
    except Exception as error:
        if targets is not None:
            raise
        what = f"{type(error).__name__}: {error}"
        raise PipelineError(
            f"loss_fn(outputs, None) raises {what}; rank {rank} computes the loss, but got no targets"
        ) from error
    maker = (
        f'stage "{stage}", which computes the loss because there is no loss_fn,'
        if loss_fn is None
        else "loss_fn"
    )
    if not torch.is_tensor(loss) or loss.numel() != 1:
        got = (
            f"a tensor of shape {tuple(loss.shape)}" if torch.is_tensor(loss) else f"a {type(loss).__name__}"
        )
        raise PipelineError(
            f"{maker} returns {got}: expected a tensor with one element, the mean loss of the micro-batch"
        )
    if not loss.requires_grad:
        raise PipelineError(
            f"{maker} returns a loss that has no gradient: it depends on no trainable parameter"
        )
    return loss


REGISTERED = "register it in each layer that computes with it (head.weight = embedding.weight)"
IN_A_MODULE = (
    "make loss_fn a torch.nn.Module that has this weight, or compute with it in a layer of the last stage"
)


def check_weights(
    pipe: nn.Module,
    maker: str,
    made: Any,
    given: Any,
    names: Mapping[nn.Parameter, str],
    right: str = REGISTERED,
) -> None:
    """Raises PipelineError where the forward of a stage, or loss_fn, made `made` of `given` with a weight that `pipe`
    does not have, as one that it closes over or keeps in a list. `names`: of weights. `right`: what would be."""
    tensors, before = (
        [held.part if isinstance(held, ShardedLogits) else held for held in tree_leaves(values)]
        for values in (made, given)
    )
    for weight in strangers(tensors, before, pipe.parameters()):
        known = f", {names[weight]}," if weight in names else ""
        raise PipelineError(
            f"{maker} computes with a weight of shape {tuple(weight.shape)}{known} that is no parameter of the pipeline on rank {pipe.rank}, so "
            f"clip_grad_norm_() and copies on other ranks would miss it: {right}; if it is not to be trained, call requires_grad_(False) on it"
        )
