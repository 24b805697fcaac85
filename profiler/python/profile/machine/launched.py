# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile` started by torchrun, deepspeed or Slurm, once a rank.

    torchrun --nproc-per-node 4 -m ostinato.profile train.py -- --deepspeed_config ds_config.json

All ranks measure the transfers between them, pair by pair, over the backend that they will train with
(wire.py). Then the first rank of each device kind profiles the model by itself. With one kind, rank 0 writes the
profile; with several, each kind's goes to a separate file.

Layers that are sliced over ranks (tensor parallelism) run collectives, for which one rank is not enough. Under
torchrun, whose agent keeps the ranks' store, the other ranks wait until rank 0 has seen the layers (WaitingRanks). If
they are sliced, every rank runs the script under DeepSpeed's own engine, which measures them there
("auto": "profile" in the section that it gets).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.transfers import all_pairs, fitted, measure_pairs
from ostinato.profile.machine.wire import joined
from ostinato.groups import everyones

ALONE, TOGETHER = "alone", "together"  # what rank 0 tells the other ranks: they may end, or run the script
WORD = "who profiles"
PERIOD_S = 0.5


@dataclass
class Role:
    """What this process must do."""

    profiles: bool  # it is the first rank of its kind
    kinds: list[str]  # of the whole launch, each once, in the order of their first ranks
    ranks: int = 1  # of the launch
    # measure_pairs() of all ranks; empty where they were not measured.
    pairs: list[Any] = field(default_factory=list)

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


def store_of_launch(rank: int, ranks: int) -> dist.Store:
    """With keys that a script's own process group does not see."""
    store, _, _ = next(dist.rendezvous("env://", rank, ranks))
    return dist.PrefixStore("ostinato profile", store)


def meet(rank: int, ranks: int, kind: str, device: Any, with_transfers: bool) -> Role:
    """Called by every rank of a launch. The process group lasts for this call alone."""
    torch.set_num_threads(1)
    with joined(rank, ranks, store_of_launch(rank, ranks), device) as wire:
        kinds = everyones(kind)
        pairs = everyones(measure_pairs(wire, rank, all_pairs(ranks)) if with_transfers else [])
    return Role(
        kinds.index(kind) == rank, list(dict.fromkeys(kinds)), ranks, [row for rows in pairs for row in rows]
    )


class WaitingRanks:
    """The other ranks of a launch, which wait for rank 0.

    waiting = WaitingRanks.of(role)      # None: there are none, or they do not wait
    if role.profiles:
        waiting.tell(ALONE)         # rank 0, once it knows
    elif waiting.told() == TOGETHER: ...
    """

    def __init__(self, store: dist.Store):
        self._store, self._told = store, False

    @classmethod
    def of(cls, role: Role) -> WaitingRanks | None:
        """Ranks wait if they have one kind of device, and a store that outlives rank 0's process."""
        rank, ranks = world()
        if ranks < 2 or len(role.kinds) > 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        return cls(store_of_launch(rank, ranks))

    def tell(self, word: str) -> None:
        """Counts once."""
        if not self._told:
            self._told = True
            with contextlib.suppress(
                dist.DistError
            ):  # the launcher is gone, with the store, and no rank waits
                self._store.set(WORD, word)

    def told(self) -> str:
        try:
            while not self._store.check([WORD]):  # wait() would not let Python answer a signal
                time.sleep(PERIOD_S)
            return self._store.get(WORD).decode()
        except dist.DistError:
            raise ProfileError("the launcher is gone, so this rank ends") from None


def run_in_engine(
    script: Path,
    module: bool,
    arguments: Sequence[str],
    output: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> int:
    """Runs this rank of the script under DeepSpeed's own engine, which leaves profile.json in `output` of rank 0;
    returns the script's exit status. Called on every rank of a launch. `folder`, `environment`: of the launcher."""
    section = json.dumps({"auto": "profile", "output": str(output)})
    named = ["-m", str(script)] if module else [str(script)]
    command = [sys.executable, "-m", "ostinato.run", *named, *arguments]
    return subprocess.call(command, cwd=folder, env={**environment, "OSTINATO_PLAN": section})


def file_of_kind(path: Path, kind: str, kinds: list[str]) -> Path:
    """`profile.json`, or `profile.h200.json` where there are several kinds."""
    if len(kinds) < 2:
        return path
    return path.with_name(
        f"{path.stem}.{''.join(c if c.isalnum() else '-' for c in kind.lower())}{path.suffix}"
    )
