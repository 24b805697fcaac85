"""What a send and receive between two ranks costs, by size, over gloo.

`measure_transfers(ranks)` starts that many processes of this file, which measure one pair after the other. A round trip
of blocking sends and receives is halved, so both directions of a pair cost the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ostinato import _profiler
from ostinato.profile.errors import MISSING, ProfileError

SIZES = tuple(1 << power for power in range(10, 24, 2))  # 1 KiB to 4 MiB
WARM_UP, REPEATS = 3, 15
TIMEOUT = 300  # seconds, of all of it


def round_trip(mine: int, other: int, tensor: torch.Tensor, first: bool) -> int:
    """Nanoseconds from the first rank's send to its receive."""
    begin = time.perf_counter_ns()
    if first:
        dist.send(tensor, other)
        dist.recv(tensor, other)
    else:
        dist.recv(tensor, other)
        dist.send(tensor, other)
    return time.perf_counter_ns() - begin


def measure_pair(rank: int, pair: tuple[int, int]) -> list[tuple[int, int]]:
    """(bytes, nanoseconds one way) by size. Both ranks of the pair call it; the first one's figures count."""
    other = pair[1] if rank == pair[0] else pair[0]
    samples = []
    for size in SIZES:
        tensor = torch.zeros(size, dtype=torch.uint8)
        times = [round_trip(rank, other, tensor, rank == pair[0]) for _ in range(WARM_UP + REPEATS)]
        samples.append((size, max(1, statistics.median_low(times[WARM_UP:]) // 2)))
    return samples


@contextmanager
def gloo(rank: int, ranks: int, init_method: str) -> Iterator[None]:
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=ranks, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()


def all_pairs(ranks: int) -> list[tuple[int, int]]:
    return list(combinations(range(ranks), 2))


def measure_pairs(rank: int, pairs: list[tuple[int, int]]) -> list[Any]:
    """One pair after the other, so that none disturbs another. Returns what this rank measured as the first of a pair."""
    measured = []
    for pair in pairs:
        dist.barrier()
        if rank in pair:
            samples = measure_pair(rank, pair)
            if rank == pair[0]:
                measured.append([*pair, samples])
    dist.barrier()
    return measured


def fitted(pairs: list[Any]) -> list[Any]:
    """TransferCosts of both directions of each measured pair."""
    return [
        _profiler.fit_link(*direction, [tuple(sample) for sample in samples])
        for source, target, samples in sorted(pairs)
        for direction in ((source, target), (target, source))
    ]


@contextmanager
def processes(ranks: int, folder: Path) -> Iterator[list[subprocess.Popen]]:
    started: list[subprocess.Popen] = []
    try:
        for rank in range(ranks):
            command = [sys.executable, "-m", "ostinato.profile.transfers", str(rank), str(ranks), str(folder)]
            with (folder / f"{rank}.log").open("w") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for(started: list[subprocess.Popen], folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    for rank, process in enumerate(started):
        try:
            status = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise ProfileError(f"transfers took more than {TIMEOUT} s: use --no-transfers") from error
        if status:
            lines = (folder / f"{rank}.log").read_text().strip().splitlines() or ["no message"]
            raise ProfileError(f"rank {rank} of the transfer measurement failed: {lines[-1]}", MISSING)


def measure_transfers(ranks: int = 2) -> list[Any]:
    """TransferCosts of every directed pair of `ranks` processes on this machine, or a ProfileError."""
    if ranks < 2:
        raise ProfileError(f"a transfer needs at least 2 ranks, got {ranks}")
    if not dist.is_gloo_available():
        raise ProfileError("this torch has no gloo: use --no-transfers", MISSING)
    with tempfile.TemporaryDirectory(prefix="ostinato-transfers-") as name:
        folder = Path(name)
        with processes(ranks, folder) as started:
            wait_for(started, folder)
        return fitted([row for rank in range(ranks) for row in json.loads((folder / f"{rank}.json").read_text())])


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of measure_transfers().")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with gloo(args.rank, args.ranks, f"file://{args.folder / 'store'}"):
        measured = measure_pairs(args.rank, all_pairs(args.ranks))
    (args.folder / f"{args.rank}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
