# SPDX-License-Identifier: Apache-2.0
"""One rank's end of the process group whose transfers are measured: its buffers, its clock, and which backend
it is.

    with joined(rank, ranks, store, device_of_this_process()) as wire:      # every rank of the launch
        wire.backend                                                            # "nccl"
        wire.round_trips(other, size=4096, first=True, count=18)               # ns, one a trip

The backend is the one that training will use between these ranks: NCCL if each has its own GPU, else gloo;
over NCCL in groups like the executor's, one for each direction (ostinato.groups). Ranks always meet over
gloo, which also carries what they tell each other: a barrier over NCCL would need the communicators that are
being measured.

Over gloo a send returns when its peer has received, so the steady clock of the host tells a round trip. Over
NCCL calls only enqueue work on the device's stream: all trips are enqueued at once, with an event between
each two, so that no trip waits for the host of the other rank, as none does where a plan posts its receives
early.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from ostinato.errors import Status
from ostinato.profile.errors import ProfileError
from ostinato.groups import everyones, link_options, make_group

TIMEOUT = 300  # seconds, of a rank that waits for another
KIB = 1 << 10


@dataclass(frozen=True)
class Seat:
    """Where a rank runs. `device` is empty where transfers are between buffers of the host."""

    host: str
    device: str  # tells the GPUs of a host apart
    nccl: bool  # this torch has it


def backend_of(seats: Sequence[Seat]) -> str:
    """NCCL refuses two ranks on one GPU, and knows no host memory."""
    apart = len({(seat.host, seat.device) for seat in seats}) == len(seats)
    return "nccl" if apart and all(seat.device and seat.nccl for seat in seats) else "gloo"


def exchange(other: int, tensor: torch.Tensor, first: bool, to: Any = None, back: Any = None) -> None:
    """There and back, in the order that neither rank waits for the other's second call. `to`, `back`: this
    rank's groups."""
    steps = [(dist.send, to), (dist.recv, back)]
    for step, group in steps if first else reversed(steps):
        step(tensor, other, group=group)


class HostWire:
    """Gloo between buffers of the hosts."""

    backend = "gloo"
    sizes = tuple(KIB << power for power in range(0, 14, 2))  # to 4 MiB

    def open(self, rank: int, pair: tuple[int, int]) -> None:
        """Before round_trips() of a pair. Every rank calls it."""

    def round_trips(self, other: int, size: int, first: bool, count: int) -> list[int]:
        tensor, times = torch.zeros(size, dtype=torch.uint8, device="cpu"), []
        for _ in range(count):
            begin = time.perf_counter_ns()
            exchange(other, tensor, first)
            times.append(time.perf_counter_ns() - begin)
        return times


class DeviceWire:
    """NCCL between buffers of the ranks' devices. The first trip of a pair makes its communicators, for a
    second or so."""

    backend = "nccl"
    sizes = tuple(KIB << power for power in range(0, 18, 2))  # to 64 MiB: links of devices are quicker

    def __init__(self, device: Any):
        self.device = device

    def open(self, rank: int, pair: tuple[int, int]) -> None:
        """Makes a group for each direction."""
        limit = timedelta(seconds=TIMEOUT)
        ways = [make_group(pair, backend="nccl", **link_options("nccl", limit)) for _ in range(2)]
        self.to, self.back = ways if rank == pair[0] else reversed(ways)

    def round_trips(self, other: int, size: int, first: bool, count: int) -> list[int]:
        tensor = torch.zeros(size, dtype=torch.uint8, device=self.device.place)
        events = [self.device.event() for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            exchange(other, tensor, first, self.to, self.back)
            event.record()
        self.device.synchronize()
        milliseconds = (a.elapsed_time(b) for a, b in pairwise(events))
        return [round(1e6 * trip) for trip in milliseconds]


def wire_of(device: Any) -> Any:
    """All ranks agree on it. Every rank calls it, in a process group of gloo's."""
    seat = Seat(socket.gethostname(), device.identity(), dist.is_nccl_available())
    if backend_of(everyones(seat)) == "gloo":
        return HostWire()
    return DeviceWire(device)


@contextmanager
def joined(rank: int, ranks: int, at: dist.Store | str, device: Any) -> Iterator[Any]:
    """The process group lasts for the block alone. Called by every rank. `at`: where they meet, a store or a URL."""
    if not dist.is_gloo_available():
        raise ProfileError("this torch has no gloo: use --no-transfers", Status.MISSING)
    limit = timedelta(seconds=TIMEOUT)
    where: Any = {"store": at} if isinstance(at, dist.Store) else {"init_method": at}
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=limit, **where)
    try:
        with device.active():
            yield wire_of(device)
    finally:
        dist.destroy_process_group()
