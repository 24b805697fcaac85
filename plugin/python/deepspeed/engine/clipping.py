# SPDX-License-Identifier: Apache-2.0
"""Gradient norms, where DeepSpeed's depends on which rank holds which layer.

Without ZeRO, in fp32, its clip_grad_norm_ sums the norms of the parameters of each rank, in their order, before it
reduces over ranks (and leaves out the parameters of all pipeline ranks but the first). Where layers have moved it
would clip by a different norm. So each rank passes the norms of the layers that it would have in DeepSpeed's own
partition: the same values in the same order, and the same result bit for bit.

In fp16 its optimizer for torch's optimizers counts a tied parameter once for each rank that has it, where
its other optimizers count it once. So the rank that counts it here counts it as often.

ZeRO and that optimizer sum the norm of one group after another over the ranks of a pipeline, and DeepSpeed drops
groups without parameters: a rank that has fewer groups takes part as if it had empty ones.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from deepspeed.runtime.fp16 import unfused_optimizer
from deepspeed.runtime.utils import clip_grad_norm_, is_model_parallel_parameter
from ostinato.groups import everyones

from ..errors import OstinatoError
from ..stages.idle import NAME
from ..save.tensor_names import in_layers
from ..upstream import Engine


def clip_as_partitioned(engine: Engine, names: list[list[str]]) -> None:
    """Clips the engine's gradients. `names[r]`: parameters of pipeline rank r in DeepSpeed's partition, in
    its order."""
    norms = _norms(engine, sorted({name for held in names for name in held} - {NAME}))
    learning = [
        _of_rank(held, norms, rank == len(names) - 1, len(engine.grid.dp_group) > 1)
        for rank, held in enumerate(names)
    ]
    # DeepSpeed takes the norm of the first rank's layers. Where none of them is trainable, DeepSpeed could not
    # run, and this takes the norm of all other ranks.
    counted = (
        learning
        if learning[0]
        else [[norm for held in learning for norm in held], *([] for _ in learning[1:])]
    )
    nothing = torch.zeros((), device=engine.device), True, False
    stand_ins = [_stand_in(*norm) for norm in counted[engine.stage_id] or [nothing]]
    limit = engine.gradient_clipping()
    total = clip_grad_norm_(stand_ins, limit, mpu=engine.mpu)
    # As clip_grad_norm_ computes it.
    coefficient = torch.tensor([float(limit)], device=total.device) / (total + 1e-6)
    coefficient = torch.min(torch.ones_like(coefficient), coefficient)
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(coefficient)


@contextmanager
def counted_as_partitioned(engine: Engine, names: list[list[str]]) -> Iterator[None]:
    """Around a step of the optimizer: FP16_UnfusedOptimizer takes its norm of each tied parameter as often as
    under DeepSpeed's partition. `names`: as for clip_as_partitioned()."""
    if not isinstance(engine.optimizer, unfused_optimizer.FP16_UnfusedOptimizer):
        yield
        return
    split = unfused_optimizer.split_params_grads_into_shared_and_expert_params
    ranks = Counter(name for held in names for name in set(held) if in_layers(name))
    times = {parameter: ranks[name] or 1 for name, parameter in engine.module.named_parameters()}

    def split_and_repeated(group: list[torch.nn.Parameter]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        shared, experts = split(
            [p for p in group for _ in range(0 if _counts_elsewhere(p) else times.get(p, 1))]
        )
        if not shared and not experts and group:
            shared = [torch.zeros_like(group[0])]  # all ranks reduce the norm
        return shared, experts

    unfused_optimizer.split_params_grads_into_shared_and_expert_params = split_and_repeated
    try:
        yield
    finally:
        unfused_optimizer.split_params_grads_into_shared_and_expert_params = split


def _counts_elsewhere(parameter: torch.Tensor) -> bool:
    """The script's own parameters have no mark."""
    return getattr(parameter, "ds_pipe_replicated", False)


def _of_rank(held: list[str], norms: dict, last: bool, replicas: bool) -> list:
    """The norms for a rank of DeepSpeed's partition. The last rank computes the loss; on other ranks loss_fn, and what
    the script added to the model, do not train, and have gradients, all zero, only where replicas add theirs.
    """
    learning = [(name, norms[name]) for name in held if name in norms and norms[name][1]]
    others = [(name, norm) for name, norm in learning if last or replicas or in_layers(name)]
    return [(norm[0] * (last or in_layers(name)), *norm[1:]) for name, norm in others]


def _norms(engine: Engine, order: list[str]) -> dict[str, tuple[torch.Tensor, bool, bool]]:
    """By name, for the whole pipeline: the gradient's norm, whether there is a gradient, and whether the
    parameter is model-parallel."""
    place = {name: index for index, name in enumerate(order)}
    parts = engine.module.sharded_parameters()
    table, added = torch.zeros(len(order) + 1, 5, device=engine.device), ""
    for name, parameter in engine.module.named_parameters():
        # Only one rank may count a tied parameter, which several ranks hold: adding zeros keeps its bits.
        if name != NAME and parameter.grad is not None and not _counts_elsewhere(parameter):
            if name not in place:
                added, table[-1] = name, 1.0
                continue
            norm = parameter.grad.data.detach().float().norm(2)
            whole, part = (norm.new_zeros(()), norm.square()) if name in parts else (norm, norm.new_zeros(()))
            kinds = norm.new_tensor([True, is_model_parallel_parameter(parameter)])
            table[place[name]] = torch.stack([whole, *kinds, part, (norm > 0).to(norm.dtype)])
    dist.all_reduce(table, group=engine.grid.pp_proc_group)
    if table[-1].any():  # on some rank
        added = next(filter(None, everyones(added, engine.grid.pp_proc_group)))
        raise OstinatoError(
            f'"{added}" was added to the model after deepspeed.initialize(), which does not work with "gradient_clipping" (1.0 by default): '
            "make it in the constructor, or set the key to 0"
        )
    for name in (name for name in order if not in_layers(name)):
        if table[place[name], 4] > 1:  # DeepSpeed counts the gradients of one rank, under a plan of another
            raise OstinatoError(
                f'"{name}" belongs to no layer, and gets gradients on {int(table[place[name], 4])} ranks, whose copies then differ; that does not '
                'work with "gradient_clipping" (1.0 by default): set it to 0, or give the parameter to one layer'
            )
    table[:, 0] += table[:, 3].sqrt()  # of a sharded parameter: from the squares of its parts
    return {name: (row[0], bool(row[1]), bool(row[2])) for name, row in zip(order, table[:-1], strict=True)}


def _stand_in(norm: torch.Tensor, _present: bool, model_parallel: bool) -> torch.Tensor:
    """A parameter whose gradient has exactly this norm: the square root of a square is exact."""
    made = torch.zeros(1, device=norm.device, requires_grad=True)
    made.grad = norm.reshape(1).clone()
    made.model_parallel = model_parallel  # type: ignore[attr-defined]  # DeepSpeed's mark
    return made


def even_groups(engine: Engine) -> None:
    """Makes ranks that have fewer groups than another take part in all sums of the norm. All ranks must call it."""
    optimizer = engine.optimizer
    unfused = isinstance(optimizer, unfused_optimizer.FP16_UnfusedOptimizer)
    if not unfused and not hasattr(optimizer, "scaled_global_norm"):
        return
    here = len(optimizer.fp16_groups if unfused else optimizer.bit16_groups)
    lacking = range(here, max(everyones(here)))
    if lacking and unfused:
        optimizer.step = partial(_step_of_groups, optimizer, lacking)
    elif lacking:
        optimizer.scaled_global_norm = partial(_norm_of_groups, optimizer, lacking)


def _step_of_groups(optimizer, lacking: range, *args, **kwargs):
    """FP16_UnfusedOptimizer's step, with empty groups of these numbers in its norm."""
    total = unfused_optimizer.get_global_norm

    def total_of_all(norm_list: list) -> float:
        nothing = [torch.zeros_like(optimizer.fp16_groups[0][0])]
        of_lacking = [unfused_optimizer.get_weight_norm(nothing, mpu=optimizer.mpu) for _ in lacking]
        return total(norm_list=[*norm_list, *of_lacking])

    unfused_optimizer.get_global_norm = total_of_all
    try:
        return type(optimizer).step(optimizer, *args, **kwargs)
    finally:
        unfused_optimizer.get_global_norm = total


def _norm_of_groups(optimizer, lacking: range, *args, **kwargs) -> torch.Tensor:
    """ZeRO's norm, with empty groups of these numbers."""
    experts = getattr(optimizer, "is_moe_param_group", [])  # which DeepSpeed has only where there are experts
    by_group = optimizer.bit16_groups, optimizer.params_in_partition, experts
    for held in by_group:
        held.extend([] for _ in lacking)
    optimizer.averaged_gradients.update((number, []) for number in lacking)
    try:
        return type(optimizer).scaled_global_norm(optimizer, *args, **kwargs)
    finally:
        for held in by_group:
            del held[lacking.start :]
        for number in lacking:
            del optimizer.averaged_gradients[number]
