"""Plans that run the model in two directions (X: Chimera, DualPipe), each with weights of its own.

Every layer is on several ranks, the same everywhere, or sharded over the same ranks for all directions: gradients of all copies are added before DeepSpeed reduces them over
data-parallel replicas, each counts once in norms, and the first holder writes checkpoints. The copies start equal, and stay
equal, because they add the same numbers and step alike.
"""

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def groups_of(grid, holders: list[tuple[int, ...]]) -> dict[tuple[int, ...], object]:
    """A process group for each set of pipeline ranks that hold a layer together, in each pipeline; this rank's, by its set. All
    ranks must call it.
    """
    groups, rank = {}, dist.get_rank()
    for ranks in sorted({h for h in holders if len(h) > 1}):
        for pipeline in grid.pipe_groups:
            members = [pipeline[r] for r in ranks]
            group = dist.new_group(members)
            if rank in members:
                groups[ranks] = group
    return groups


class Copies:
    """The weights that this rank holds together with others. `shared`: (group, parameters) in one order on all of its ranks;
    `elsewhere`: units (rebuild) that another rank holds first.
    """

    def __init__(self, shared: list[tuple[object, list[torch.nn.Parameter]]], elsewhere: set[str]):
        self._shared, self._elsewhere = shared, elsewhere

    def others_name(self, parameter: str) -> bool:
        """Whether the parameter of that name stands under another rank's in what is saved for all."""
        return any(parameter.startswith(f"{unit}.") for unit in self._elsewhere)

    def add_gradients(self, engine) -> None:
        """Sums them over all copies, in one exchange a group and dtype."""
        for group, parameters in self._shared:
            by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
            for parameter in parameters:
                gradient = _gradient(engine, parameter)
                if gradient is not None:
                    by_dtype.setdefault(gradient.dtype, []).append(gradient)
            for gradients in by_dtype.values():
                flat = _flatten_dense_tensors(gradients)
                dist.all_reduce(flat, group=group)
                for gradient, total in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
                    gradient.copy_(total)


def _gradient(engine, parameter) -> torch.Tensor | None:
    """Where DeepSpeed's optimizer keeps the sum of a step."""
    if engine.using_bf16_optimizer:
        return getattr(parameter, "_hp_grad", None)
    if hasattr(engine.optimizer, "get_param_gradient_attribute"):
        return engine.optimizer.get_param_gradient_attribute(parameter)
    return parameter.grad


def add_losses(engine, ranks: list[int]) -> None:
    """Brings the losses of every rank that computes some to the first of `ranks`, pipeline ranks in one order everywhere."""
    mine, group = engine.stage_id, engine._ostinato.group
    ranks = list(dict.fromkeys(ranks))  # one rank may end both directions
    if mine not in ranks or len(ranks) == 1:
        return
    names = list(engine.total_additional_losses or ())
    own = [engine.total_loss, *(engine.total_additional_losses[name] for name in names)]
    flat = torch.stack([loss.detach().float().reshape(()) for loss in own])
    for rank in ranks[1:]:
        if mine == rank:
            dist.send(flat, engine.grid.stage_to_global(ranks[0]), group=group)
        elif mine == ranks[0]:
            other = torch.empty_like(flat)
            dist.recv(other, engine.grid.stage_to_global(rank), group=group)
            flat = flat + other
    if mine == ranks[0]:
        engine.total_loss = flat[0].to(own[0].dtype).reshape(own[0].shape)
        for name, total in zip(names, flat[1:], strict=True):
            engine.total_additional_losses[name] = total
