# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile` started by torchrun, deepspeed or Slurm, once a rank.

    torchrun --nproc-per-node 4 -m ostinato.profile train.py -- --deepspeed_config ds_config.json

All ranks measure the transfers between them, pair by pair, over the backend that they will train with
(wire.py). Then the first rank of each device kind profiles the model by itself, and the others end. With one
kind, rank 0 writes the profile; with several, each kind's goes to a file of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ostinato.profile.machine.transfers import all_pairs, fitted, measure_pairs
from ostinato.profile.machine.wire import joined
from ostinato.groups import everyones


@dataclass
class Role:
    """What this process must do."""

    profiles: bool  # it is the first rank of its kind
    kinds: list[str]  # of the whole launch, each once, in the order of their first ranks
    ranks: int = 1  # of the launch
    pairs: list[Any] = field(
        default_factory=list
    )  # measure_pairs() of all ranks; empty where they were not measured

    def transfers(self) -> list[Any]:
        """TransferCosts of every directed pair."""
        return fitted(self.pairs)


def world() -> tuple[int, int]:
    """(rank, ranks) as the launcher says: torchrun's and deepspeed's names, else Slurm's; (0, 1) without one."""
    environment = os.environ
    if "WORLD_SIZE" in environment:
        return int(environment.get("RANK", "0")), int(environment["WORLD_SIZE"])
    if "SLURM_PROCID" in environment and "MASTER_ADDR" in environment:
        return int(environment["SLURM_PROCID"]), int(environment.get("SLURM_NTASKS", "1"))
    return 0, 1


def meet(rank: int, ranks: int, kind: str, device: Any, with_transfers: bool) -> Role:
    """Called by every rank of a launch. The process group lasts for this call alone."""
    torch.set_num_threads(1)
    with joined(rank, ranks, "env://", device) as wire:
        kinds = everyones(kind)
        pairs = everyones(measure_pairs(wire, rank, all_pairs(ranks)) if with_transfers else [])
    return Role(
        kinds.index(kind) == rank, list(dict.fromkeys(kinds)), ranks, [row for rows in pairs for row in rows]
    )


def file_of_kind(path: Path, kind: str, kinds: list[str]) -> Path:
    """`profile.json`, or `profile.h200.json` where there are several kinds."""
    if len(kinds) < 2:
        return path
    return path.with_name(
        f"{path.stem}.{''.join(c if c.isalnum() else '-' for c in kind.lower())}{path.suffix}"
    )
