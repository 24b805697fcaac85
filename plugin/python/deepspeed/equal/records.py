# SPDX-License-Identifier: Apache-2.0
"""What an engine computes in a training, step by step: a fingerprint of each tensor.

A fingerprint is a digest of the tensor's bytes, its norm, and a sketch. Where the digests of two tensors differ,
the sketches estimate their distance (within a quarter, as a rule).
"""

import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch

SUMS = 37  # of a sketch; a prime, so that a column of a matrix is spread over all of them
BLOCK = 1771 * SUMS  # elements that are summed at once
PIECE = 64  # blocks that are copied from a device at once
BEFORE = "weights before"  # in the first step alone
KINDS = {
    BEFORE: "weight before step 1",
    "loss": "loss",
    "gradients": "gradient",
    "norm": "gradient norm",
    "weights": "weight",
    "buffers": "buffer",
}


class Fingerprint(NamedTuple):
    """Of one tensor. Equal bytes have equal fingerprints."""

    kind: str  # dtype and shape
    digest: str
    norm: float
    sketch: list[float]  # linear: the sketch of a difference is the difference of the sketches
    faint: float = 0.0  # share of faint elements; of gradients only


# By KINDS and the tensor's name ("" where there is one per model); None: no gradient.
Step = dict[str, dict[str, Fingerprint | None]]


class Difference(NamedTuple):
    """Of one tensor in one step."""

    step: int
    kind: str  # of KINDS
    name: str
    layer: int
    by: float  # relative to the first's norm
    rounding: bool
    words: str = ""  # in place of `by`, where the two cannot be subtracted

    def __str__(self) -> str:
        where = f" of layer {self.layer} ({self.name})" if self.name else ""
        return f"{KINDS[self.kind]}{where}{self.words or f' by {self.by:.2g}'}"


class Records(NamedTuple):
    """What one rank, or all ranks, saw."""

    steps: list[Step]
    layers: dict[str, int]  # by the tensor's name; the loss function comes after the last layer
    left_out: list[str]  # names of tensors that a rank holds in part
    unseen: str  # the optimizer that does not show its gradients
    eps: float  # of the coarsest dtype
    itself: Sequence[Difference] = ()  # between two runs of the same step
    drew: str = ""  # the optimizer that draws random numbers
    began: int = 0  # engine.global_steps before the first step
    # By step: a digest of what the first rank of a pipeline has read as inputs, and the last one as labels.
    data: Sequence[dict[str, str]] = ()

    def to_text(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_text(text: str) -> "Records":
        steps, layers, left_out, unseen, eps, itself, *rest = json.loads(text)
        made = [
            {k: {n: p and Fingerprint(*p) for n, p in of.items()} for k, of in step.items()} for step in steps
        ]
        return Records(
            made, layers, left_out, unseen, eps, [Difference(*difference) for difference in itself], *rest
        )


@cache
def _signs(seed: int) -> torch.Tensor:
    """-1 and 1 for the elements of a block; the script's generators stay as they are."""
    drawn = torch.randint(
        2, (BLOCK // SUMS, SUMS), generator=torch.Generator().manual_seed(seed), device="cpu"
    )
    return drawn.to(torch.float64) * 2 - 1


def fingerprint_of(tensor: torch.Tensor, piece: int = PIECE, eps: float = 0.0) -> Fingerprint:
    """`piece`: blocks that are copied to the CPU at a time. `eps`: if set, counts faint elements, for a
    gradient. O(elements)."""
    tensor = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    flat = (
        (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
        .reshape(-1)
        .contiguous()
    )
    # The fastest there is; no one forges gradients.
    digest = hashlib.sha1(kind.encode(), usedforsecurity=False)
    sums, square, faint = torch.zeros(SUMS, dtype=torch.float64, device="cpu"), 0.0, 0
    for begin in range(0, len(flat), piece * BLOCK):
        held = flat[begin : begin + piece * BLOCK].cpu()
        digest.update(held.view(torch.uint8).numpy().data)
        for block, values in enumerate(held.split(BLOCK), begin // BLOCK):
            values = values.to(torch.float64)
            square += float(values.dot(values))
            if eps:  # relative to the block, which stands for the tensor
                sizes = values.abs()
                faint += int(((sizes > 0) & (sizes <= bound(eps) * values.square().mean().sqrt())).sum())
            rows = torch.nn.functional.pad(values, (0, -len(values) % SUMS)).view(-1, SUMS)
            sums += (rows * _signs(0)[: len(rows)]).sum(0) * _signs(1)[block % len(_signs(1))]
    return Fingerprint(kind, digest.hexdigest(), math.sqrt(square), sums.tolist(), faint / max(1, len(flat)))


def bound(eps: float) -> float:
    """Up to this share of its norm a tensor may differ by rounding."""
    return math.sqrt(eps) / 4


def same(first: Fingerprint | None, second: Fingerprint | None) -> bool:
    """Bit for bit."""
    return (first and first.digest) == (second and second.digest)
