"""Cross-entropy of logits whose classes are split over ranks: no rank ever holds all of them.

Two reductions per call, of one and of two (with label smoothing three) figures a row: the maximum, so that no exponential
overflows; then the sums of exponentials and the logit of the target, which one rank has. (Shoeybi et al., Megatron-LM, arXiv
1909.08053, section 3, "fusing the output of the parallel GEMM with the cross entropy loss".)
"""

import torch

from .shard import Shard

HALF = (torch.float16, torch.bfloat16)


def vocabulary_cross_entropy(
    part: torch.Tensor,
    target: torch.Tensor,
    shard: Shard,
    classes: int,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """As torch.nn.functional.cross_entropy: `part` is (rows, this rank's classes), `target` the class of each row.

    The result, and `part`'s dtype, are those of the whole; sums are in float32 at least. Every rank must call it with the same
    targets.
    """
    kept = target != ignore_index
    rows = target.masked_fill(~kept, 0)
    torch._assert_async(((rows >= 0) & (rows < classes)).all(), "a target beyond the classes")
    losses = _CrossEntropy.apply(part, rows, shard, classes, label_smoothing).masked_fill(~kept, 0)
    if reduction == "none":
        return losses.to(part.dtype)
    if reduction == "sum":
        return losses.sum().to(part.dtype)
    if reduction != "mean":
        raise ValueError(f'{reduction!r} is no reduction: "mean", "sum" or "none"')
    return (losses.sum() / kept.sum()).to(part.dtype)


class _CrossEntropy(torch.autograd.Function):
    """(rows, this rank's classes), (rows,) -> the loss of each row."""

    @staticmethod
    def forward(ctx, part, target, shard, classes, smoothing):
        begin, end = shard.bounds(classes)
        logits = part.float() if part.dtype in HALF else part
        logits = logits - shard.max_(logits.amax(dim=1)).unsqueeze(1)
        elsewhere = (target < begin) | (target >= end)
        column = (target - begin).masked_fill(elsewhere, 0).unsqueeze(1)
        of_target = logits.gather(1, column).squeeze(1).masked_fill(elsewhere, 0)
        exponentials = logits.exp()
        sums = [exponentials.sum(dim=1), of_target] + ([logits.sum(dim=1)] if smoothing else [])
        sums = shard.sum_(torch.stack(sums))
        ctx.save_for_backward(exponentials.div_(sums[0].unsqueeze(1)), column, elsewhere)
        ctx.smoothing, ctx.classes, ctx.dtype = smoothing, classes, part.dtype
        losses = sums[0].log() - sums[1]
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (sums[0].log() - sums[2] / classes)
        return losses

    @staticmethod
    def backward(ctx, gradient):
        probabilities, column, elsewhere = ctx.saved_tensors
        goal = (1 - ctx.smoothing) * (~elsewhere).to(probabilities.dtype).unsqueeze(1)
        result = probabilities.scatter_add(1, column, -goal)
        if ctx.smoothing:
            result -= ctx.smoothing / ctx.classes
        return (result * gradient.unsqueeze(1)).to(ctx.dtype), None, None, None, None
