# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of the zoo, from a larger configuration: 6 blocks of width 256, on 4 sequences of 128 tokens."""

import torch
from zoo import huggingface

WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 256, 4, 1024, 4, 128


def layers() -> list:
    for name in ("WIDTH", "HEADS", "VOCABULARY", "LENGTH"):
        setattr(huggingface, name, globals()[name])
    return huggingface.gpt2(**huggingface.WITHOUT)


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


loss = huggingface.cross_entropy
