# SPDX-License-Identifier: Apache-2.0
"""One rank whose GPU and NCCL are made up: tensors are the host's, gloo answers to NCCL's name, and events
read the steady clock.

    python made_up_gpus.py RANK RANKS FOLDER [UUID]

Measures transfers as `ostinato profile` does under a launcher, and leaves what happened in FOLDER/RANK.json.
`UUID`: of the GPU, by default one of its own.
"""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from ostinato.profile.machine import wire
from ostinato.profile.machine.device import Cpu
from ostinato.profile.machine.transfers import all_pairs, measure_pairs

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
seen = {"groups": [], "events": 0, "waits": 0, "active": False}


class Event:
    def __init__(self):
        seen["events"] += 1

    def record(self):
        assert seen["active"], "an event belongs to the device that is current when it is recorded"
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        assert seen["waits"], "its time is not known before the device was waited for"
        return 1e3 * (later.at - self.at)


class Gpu(Cpu):
    kind = "made up"

    def identity(self):
        return sys.argv[4] if len(sys.argv) > 4 else f"gpu {rank}"

    @contextmanager
    def active(self):
        seen["active"] = True
        yield
        seen["active"] = False

    def event(self):
        return Event()

    def synchronize(self):
        seen["waits"] += 1


class Options:
    def __init__(self, is_high_priority_stream):
        assert is_high_priority_stream
        self.config = SimpleNamespace()


def new_group(members, backend, timeout, pg_options, made=dist.new_group):
    seen["groups"].append([list(members), backend, pg_options.config.max_ctas])
    return made(members, backend="gloo", timeout=timeout)


dist.new_group, dist.ProcessGroupNCCL = new_group, SimpleNamespace(Options=Options)
dist.is_nccl_available = lambda: True
wire.DeviceWire.sizes = (1 << 10, 1 << 16, 1 << 20)
torch.set_num_threads(1)
with wire.joined(rank, ranks, f"file://{folder / 'store'}", Gpu()) as end:
    rows = measure_pairs(end, rank, all_pairs(ranks))
(folder / f"{rank}.json").write_text(json.dumps({"rows": rows, "seen": seen}))
