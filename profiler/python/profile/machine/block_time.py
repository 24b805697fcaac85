# SPDX-License-Identifier: Apache-2.0
"""What a forward and a backward block cost on this machine beside their layers, and a step beside its blocks,
in DeepSpeed's engine under a plan.

    count_blocks(profile.rank, profile.layers, device)  # where that can be measured: rank.forward, .backward, .step_time; more for .read
    cost = measure_blocks(196608, 1 << 22)              # Cost(forward=..., ...), ns; messages of this many bytes, layers that touch this many

Two ranks train layers that hardly compute (ostinato.deepspeed.block_time, known here by its name only: the
plugin is built on the profiler). On an accelerator nothing is measured: the host runs ahead of the device
there, which hides it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ostinato.profile.machine.device import Cpu
from ostinato.profile.machine.transfers import processes, wait_for

RANKS = 2
PROGRAM = "ostinato.deepspeed.block_time"
LARGEST = 1 << 24  # bytes of a message, beyond which sending takes as long as computing
LARGEST_TOUCHED = 1 << 26  # bytes of memory, beyond which caches are as cold as they get


def can_measure(device: Any) -> bool:
    """Ranks that share a core would tell how long they wait for it."""
    return (
        isinstance(device, Cpu)
        and importlib.util.find_spec("deepspeed") is not None
        and len(os.sched_getaffinity(0)) >= RANKS
    )


def border_bytes(rows: Sequence[Any]) -> int:
    """Of what most borders between stages carry. `rows`: of a profile, at least one."""
    return statistics.median_low(row.output_bytes for row in rows)


def touched_bytes(rows: Sequence[Any]) -> int:
    """Of memory that a stage runs through, for the model on RANKS devices. `rows`: of a profile."""
    return sum(row.parameters + row.kept + row.forward_workspace for row in rows) // RANKS


def count_blocks(rank: Any, rows: Sequence[Any], device: Any) -> None:
    """Puts what blocks cost into a profile's `rank`, with messages of the size that most borders between its
    `rows` have, and the memory that they touch; nothing where that cannot be measured. As measure_blocks().
    """
    if can_measure(device):
        cost = measure_blocks(border_bytes(rows), touched_bytes(rows))
        rank.forward, rank.backward, rank.step_time = cost.forward, cost.backward, cost.step
        rank.read += cost.read


class Cost(NamedTuple):
    """Nanoseconds: of a forward block, of a backward block, of the engine's own code around a batch that is
    read, and of what a step does beside its blocks."""

    forward: int
    backward: int
    read: int
    step: int


def measure_blocks(size: int, touched: int) -> Cost:
    """Medians of the ranks, and of blocks their mean; a step's is from the rank that waits least for others.
    Layers touch `touched` bytes. Takes some seconds. Raises ProfileError where a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="ostinato-blocks-") as name:
        folder = Path(name)
        with processes(
            RANKS, folder, Cpu(), PROGRAM, str(min(size, LARGEST)), str(min(touched, LARGEST_TOUCHED))
        ) as started:
            wait_for(started, folder, "the measurement of blocks")
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    forward, backward = (sum(of_rank[kind] for of_rank in found) // RANKS for kind in "FB")
    return Cost(
        forward,
        backward,
        max(of_rank["read"] for of_rank in found),
        min(of_rank["step"] for of_rank in found),
    )
