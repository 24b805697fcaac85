# SPDX-License-Identifier: Apache-2.0
"""Inputs and a loss for a program that a file holds without them.

    sample_input("8x128:int64:50257")        # sizes, type, upper bound of integers (exclusive)
    MadeUpLoss("cross-entropy")(outputs, None)

The numbers are drawn from a seed, the same every time.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from typing import Any

import torch
from torch.nn import functional

from ostinato.errors import Status
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.tensors import tensors

MOST = 2**40  # elements; more are refused, before they fill the memory
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in
         (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)}  # fmt: skip


def sample_input(words: str) -> torch.Tensor:
    """`words`: SHAPE[:TYPE[:BELOW]]; the shape is `scalar`, or sizes with an x between them. Raises
    ProfileError, status 2."""
    shape, *rest = words.split(":")
    if not shape or len(rest) > 2:
        raise _wrong(words, "has no shape, or more than three parts")
    sizes = [] if shape == "scalar" else [_number(words, size) for size in shape.split("x")]
    if math.prod(sizes) > MOST:
        raise _wrong(words, "has more than 2^40 elements")
    kind = rest[0] if rest else "float32"
    if kind not in TYPES:
        raise _wrong(words, f"the type '{kind}' is not one of {', '.join(TYPES)}")
    if TYPES[kind].is_floating_point and len(rest) > 1:
        raise _wrong(words, "floating point inputs take no bound")
    below = _number(words, rest[1]) if len(rest) > 1 else 1
    try:
        return _drawn(sizes, TYPES[kind], below)
    except (RuntimeError, MemoryError) as error:
        raise ProfileError(f"--input {words}: {error}") from error


def _drawn(sizes: list[int], kind: torch.dtype, below: int) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(0)
    if kind.is_floating_point:
        return torch.randn(sizes, generator=seeded, device="cpu").to(kind)
    return torch.randint(0, below, sizes, generator=seeded, device="cpu").to(kind)


def _number(words: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,13}", text) or not 1 <= int(text) <= MOST:
        raise _wrong(words, f"'{text}' is not a number from 1 to 2^40")
    return int(text)


def _wrong(words: str, why: str) -> ProfileError:
    return ProfileError(
        f"--input {words}: {why}; write SHAPE:TYPE, for example 8x128:int64:50257", Status.USAGE
    )


class MadeUpLoss:
    """A number from every floating point output of a program; makes its own labels if the loss needs them."""

    def __init__(self, name: str):
        self.__name__ = name
        self.labels: list[torch.Tensor] = []  # of each such output, from the first call on

    def __call__(self, outputs: Any, _labels: Any) -> torch.Tensor:
        """Raises ProfileError, status 2, where the outputs have no such loss."""
        found = [tensor for tensor in tensors(outputs) if tensor.is_floating_point()]
        if not found:
            raise ProfileError(
                "no output of the program is floating point, so it has no loss: remove --loss", Status.USAGE
            )
        self.labels = self.labels or [self._labels_for(output) for output in found]
        return functools.reduce(operator.add, map(self._term, found, self.labels))

    def _labels_for(self, output: torch.Tensor) -> torch.Tensor:
        if self.__name__ == "mse":
            return torch.zeros_like(output)
        if self.__name__ != "cross-entropy":
            return torch.empty(0, device="cpu")
        if output.dim() == 0 or output.shape[-1] < 2:
            raise ProfileError(
                "--loss cross-entropy needs an output with the classes, at least two, as its last dimension",
                Status.USAGE,
            )
        seeded = torch.Generator().manual_seed(0)
        return torch.randint(
            0, output.shape[-1], (output.numel() // output.shape[-1],), generator=seeded, device="cpu"
        ).to(output.device)

    def _term(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.__name__ == "sum":
            return output.sum()
        if self.__name__ == "mean":
            return output.mean()
        if self.__name__ == "mse":
            return functional.mse_loss(output, labels)
        return functional.cross_entropy(output.reshape(-1, output.shape[-1]), labels)
