# SPDX-License-Identifier: Apache-2.0
"""Ranks that compute on CPUs and share them. A plan has a core for each rank, so rank 0 says where there are fewer.

    note([Place("node1", (0, 1))] * 4)    # "4 ranks share 2 cores of node1: ..."
"""

import os
import socket
from typing import NamedTuple

from deepspeed.accelerator import get_accelerator


class Place(NamedTuple):
    """Where one rank computes; without cores where that is an accelerator."""

    host: str
    cores: tuple[int, ...]


def here() -> Place:
    on_cpu = get_accelerator().device_name() == "cpu"
    return Place(socket.gethostname(), tuple(sorted(os.sched_getaffinity(0))) if on_cpu else ())


def note(places: list[Place]) -> str:
    """Of the host whose cores are shared by most ranks each; "" where every rank can have its own."""
    worst, said = 1.0, ""
    for host in dict.fromkeys(place.host for place in places):
        of_host = [place for place in places if place.host == host and place.cores]
        cores = {core for place in of_host for core in place.cores}
        share = len(of_host) / len(cores) if cores else 0
        if share > worst:
            worst = share
            said = (
                f"{len(of_host)} ranks share {len(cores)} core{'s'[: len(cores) != 1]} of {host}, and a plan has one for each: "
                f"steps may take up to {share:.3g} times as long as it says, and orders that keep ranks busier gain less"
            )
    return said
