# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of logits whose classes are split over ranks: no rank ever holds all of them.

One exchange per call, of three (with label smoothing four) values per row: each rank's largest logit m, its
sum s of exponentials relative to m, and the target's logit, which one rank has. With M the largest m, the sum of
all exponentials relative to M is the sum of s · exp(m - M): nothing overflows, and one collective does the work of
two, for maximum and sum. (Losses from parts of the classes: Shoeybi et al., Megatron-LM, arXiv
1909.08053, section 3. Sums rescaled to a new maximum: Milakov, Gimelshein, Online normalizer calculation for
softmax, arXiv 1805.02867.)
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
    """As torch.nn.functional.cross_entropy: `part` is (rows, this rank's classes), `target` the class of each
    row.

    The result equals the whole's, in the dtype that torch gives it: `part`'s, but float32 for half precision
    under torch.autocast(). Sums are in at least float32. Every rank must call it with the same targets.
    """
    kept = target != ignore_index
    rows = target.masked_fill(~kept, 0)
    torch._assert_async(((rows >= 0) & (rows < classes)).all(), "a target beyond the classes")
    losses = _CrossEntropy.apply(part, rows, shard, classes, label_smoothing).masked_fill(~kept, 0)
    dtype = losses.dtype if torch.is_autocast_enabled(part.device.type) else part.dtype
    if reduction == "none":
        return losses.to(dtype)
    if reduction == "sum":
        return losses.sum().to(dtype)
    if reduction != "mean":
        raise ValueError(f'reduction is {reduction!r}; it must be "mean", "sum" or "none"')
    return (losses.sum() / kept.sum()).to(dtype)


class _CrossEntropy(torch.autograd.Function):
    """(rows, this rank's classes), (rows,) -> the loss of each row."""

    @staticmethod
    def forward(ctx, part, target, shard, classes, smoothing):
        begin, end = shard.bounds(classes)
        logits = part.float() if part.dtype in HALF else part
        elsewhere = (target < begin) | (target >= end)
        column = (target - begin).masked_fill(elsewhere, 0).unsqueeze(1)
        of_target = logits.gather(1, column).squeeze(1).masked_fill(elsewhere, 0)
        own_peak = logits.amax(dim=1)
        masked = (own_peak == -torch.inf).unsqueeze(1)  # all classes of this rank
        own_peak = own_peak.clamp(min=torch.finfo(logits.dtype).min)
        # softmax's exponentials are 3 times as fast as exp()'s on a CPU, and the largest of a row is 1, so
        # its quotient is 1 / sum.
        probabilities = logits.softmax(dim=1).masked_fill_(masked, 0)
        own_sum = probabilities.amax(dim=1).reciprocal().masked_fill_(masked.squeeze(1), 0)
        figures = [own_peak, own_sum, of_target] + ([logits.sum(dim=1)] if smoothing else [])
        peaks, sums, *others = shard.collect(torch.stack(figures)).unbind(dim=1)  # each (ranks, rows)
        peak = peaks.amax(dim=0)
        total = (sums * (peaks - peak).exp()).sum(dim=0)
        log_total = total.log() + peak
        probabilities.mul_((own_sum * (own_peak - peak).exp() / total).unsqueeze(1))
        ctx.save_for_backward(probabilities, column, elsewhere)
        ctx.smoothing, ctx.classes, ctx.dtype = smoothing, classes, part.dtype
        losses = log_total - others[0].sum(dim=0)
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (log_total - others[1].sum(dim=0) / classes)
        return losses

    @staticmethod
    def backward(ctx, gradient):
        probabilities, column, elsewhere = ctx.saved_tensors
        gradient = gradient.unsqueeze(1)
        result = probabilities * gradient
        goal = (1 - ctx.smoothing) * (~elsewhere).to(probabilities.dtype).unsqueeze(1)
        result.scatter_add_(1, column, -goal * gradient)
        if ctx.smoothing:
            result -= ctx.smoothing / ctx.classes * gradient
        return result.to(ctx.dtype), None, None, None, None
