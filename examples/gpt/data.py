# SPDX-License-Identifier: Apache-2.0
"""Real text that every machine with Python has: the source files of its standard library."""

import sysconfig
from pathlib import Path

import torch


def corpus(limit: int = 4 << 20) -> torch.Tensor:
    """The first `limit` bytes of the standard library's modules, in the order of their names, as uint8."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def micro_batches(text: torch.Tensor, size: int, context: int, seed: int = 0):
    """Endless (inputs, targets), each (size, context) int64: the same sequence on every rank."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(text) - context - 1, (size,), generator=generator)
        window = torch.stack([text[s : s + context + 1] for s in starts.tolist()]).long()
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
