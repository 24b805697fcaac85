# SPDX-License-Identifier: Apache-2.0
"""What a send and receive between two ranks costs, by size, over the backend that they will train with
(wire.py).

`measure_transfers(ranks, device)` starts that many processes of this file, which measure one pair after the
other; `measure_kinds(ranks, device)` measures one pair within a host and one between hosts, in a run of theirs.
A round trip is halved, so both directions of a pair cost the same.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ostinato import _profiler
from ostinato.errors import Status, counted
from ostinato.groups import everyones
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.device import Cpu, device_of_this_process
from ostinato.profile.machine.wire import TIMEOUT, joined, wire_of

WARM_UP, REPEATS = 3, 15
PROGRAM = "ostinato.profile.machine.transfers"


def measure_pair(wire: Any, rank: int, pair: tuple[int, int]) -> list[tuple[int, int]]:
    """(bytes, nanoseconds one way) by size. Both ranks of the pair call it; the first one's figures count."""
    first, samples = rank == pair[0], []
    for size in wire.sizes:
        times = wire.round_trips(pair[1] if first else pair[0], size, first, WARM_UP + REPEATS)
        samples.append((size, max(1, _profiler.spread_of(times[WARM_UP:]).median // 2)))
    return samples


def all_pairs(ranks: int) -> list[tuple[int, int]]:
    return list(combinations(range(ranks), 2))


def measure_pairs(wire: Any, rank: int, pairs: Sequence[tuple[int, int]]) -> list[Any]:
    """One pair after the other, so that none disturbs another. Returns [first, second, samples, backend] of
    each pair whose first rank this is."""
    measured = []
    for pair in pairs:
        wire.open(rank, pair)
        dist.barrier()
        if rank in pair:
            samples = measure_pair(wire, rank, pair)
            if rank == pair[0]:
                measured.append([*pair, samples, wire.backend])
    dist.barrier()
    return measured


def measure_kinds(ranks: Sequence[int], device: Any) -> list[Any]:
    """TransferCosts between the ranks of a pipeline, numbered by stage. One pair of each kind (on one host,
    on two hosts) is measured and stands for all. Seconds at any number of ranks.

    Called by every rank of the world. `ranks`: the pipeline's, in the world."""
    hosts = everyones(socket.gethostname())
    one_host = {(a, b): hosts[ranks[a]] == hosts[ranks[b]] for a, b in all_pairs(len(ranks))}
    example = {kind: (ranks[a], ranks[b]) for (a, b), kind in reversed(one_host.items())}  # the first
    rows = everyones(measure_pairs(wire_of(device), dist.get_rank(), list(example.values())))
    measured = {(a, b): found for of_rank in rows for a, b, *found in of_rank}
    return fitted([[*pair, *measured[example[kind]]] for pair, kind in one_host.items()])


def fitted(pairs: list[Any]) -> list[Any]:
    """TransferCosts of both directions of each measured pair."""
    return [
        _profiler.fit_link(*direction, [tuple(sample) for sample in samples], backend)
        for source, target, samples, backend in sorted(pairs)
        for direction in ((source, target), (target, source))
    ]


def given_transfers(latency: int, bandwidth: float) -> list[Any]:
    """TransferCosts of a link that is known: in nanoseconds, and in 10^9 bytes per second; 0: bytes are free."""
    link = latency, round(bandwidth * 1e9), "given"
    return [_profiler.TransferCost(source, target, *link) for source, target in ((0, 1), (1, 0))]


@contextmanager
def processes(
    ranks: int, folder: Path, device: Any, program: str = PROGRAM, *arguments: str
) -> Iterator[list[subprocess.Popen]]:
    """Each on a separate device, as far as there are enough of this kind. `program`: a module, which is given
    its rank, their number and the folder first."""
    started: list[subprocess.Popen] = []
    environment = os.environ | ({"DS_ACCELERATOR": "cpu"} if isinstance(device, Cpu) else {})
    environment.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)  # under mpirun; DeepSpeed compares it with LOCAL_RANK
    try:
        for rank in range(ranks):
            command = [sys.executable, "-m", program, str(rank), str(ranks), str(folder), *arguments]
            with (folder / f"{rank}.log").open("w") as log:
                started.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment | {"LOCAL_RANK": str(rank)},
                    )
                )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for(started: list[subprocess.Popen], folder: Path, what: str = "the transfer measurement") -> None:
    """Raises ProfileError with the last words of the rank that fails first: the rest then lose their connection."""
    deadline = time.monotonic() + TIMEOUT
    while None in (ended := [process.poll() for process in started]):
        if any(ended) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for rank, status in enumerate(ended):
        if status:
            lines = (folder / f"{rank}.log").read_text().strip().splitlines() or ["no message"]
            raise ProfileError(f"rank {rank} of {what} failed: {lines[-1]}", Status.MISSING)
    if None in ended:
        raise ProfileError(f"{what} took more than {TIMEOUT} s")


def too_few_gpus(ranks: int, device: Any) -> str:
    """Why processes on this machine cannot show what transfers will cost, in words; empty: they can. On one GPU
    they would use gloo, and the training, with a GPU for each rank, NCCL."""
    gpus = torch.cuda.device_count() if device is not None and device.place.type == "cuda" else ranks
    if gpus >= ranks or not dist.is_nccl_available():
        return ""
    return (
        f"transfers not measured: this machine shows {counted(gpus, 'GPU')} for {ranks} ranks; start under torchrun with "
        "a GPU for each of two ranks, or give --bandwidth and --latency"
    )


def measure_transfers(ranks: int = 2, device: Any = None) -> list[Any]:
    """TransferCosts of every directed pair of `ranks` processes on this machine, or a ProfileError. `device`:
    that they will train on, the CPU by default. [] where there are too few GPUs: too_few_gpus() says so."""
    if ranks < 2:
        raise ProfileError(f"a transfer needs at least 2 ranks, got {ranks}")
    if too_few_gpus(ranks, device):
        return []
    with tempfile.TemporaryDirectory(prefix="ostinato-transfers-") as name:
        folder = Path(name)
        with processes(ranks, folder, device or Cpu()) as started:
            wait_for(started, folder)
        return fitted(
            [row for rank in range(ranks) for row in json.loads((folder / f"{rank}.json").read_text())]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of measure_transfers().")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with joined(args.rank, args.ranks, f"file://{args.folder / 'store'}", device_of_this_process()) as wire:
        measured = measure_pairs(wire, args.rank, all_pairs(args.ranks))
    (args.folder / f"{args.rank}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
