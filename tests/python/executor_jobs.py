# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_executor.py run, each in a process of its own over gloo; and the same on one
process."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ostinato.groups import link_groups
from ostinato.ranks.position import Position
from support.linked import a_group_for_each_direction
from torch import nn

WIDTH, BATCH = 16, 4


class Stage(nn.Module):
    """Takes and passes on a pair: activations, and integers that say which micro-batch they belong to."""

    def __init__(self, index: int, last: bool):
        super().__init__()
        torch.manual_seed(1000 + index)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.last = last

    def forward(self, x, tag):
        y = x + self.body(x)
        return y.pow(2).mean() if self.last else (y, tag)


def batch(step: int, micro_batch: int):
    generator = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.tensor([micro_batch])


def optimizer(stages) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for s in stages for p in s.parameters()], lr=0.1, momentum=0.9)


def reference(stages: int, micro_batches: int, steps: int, device: str = "cpu"):
    """Losses [step][micro-batch] and weights per stage, on one process."""
    torch.set_num_threads(1)
    modules = [Stage(s, s == stages - 1).to(device) for s in range(stages)]
    sgd, losses = optimizer(modules), []
    for step in range(steps):
        losses.append([])
        for m in range(micro_batches):
            value = tuple(t.to(device) for t in batch(step, m))
            for module in modules:
                value = module(*value)
            losses[-1].append(value.item())
            (value / micro_batches).backward()
        sgd.step()
        sgd.zero_grad()
    return losses, [module.state_dict() for module in modules]


class Rank:
    """The stages of one pipeline rank behind an executor. `looks`: each forward looks at its micro-batch's
    number and its loss, for which the host waits for the device.
    """

    def __init__(self, program, rank: int, group, timeout_s: float = 120.0, looks: bool = True, **options):
        from ostinato import _plugin

        self.looks = looks
        self.step = 0
        self.losses = []
        self.program = program
        self.device = options.get("device", torch.device("cpu"))
        self.executor = _plugin.Executor(
            program, rank, group, list(range(program.ranks)), timeout_s, **options
        )
        self.modules = {}
        for s, stage in enumerate(program.stages):
            if rank in stage.ranks:
                self.modules[s] = Stage(s, not stage.outputs).to(self.device)
                self.executor.set_stage(s, self.forward_of(self.modules[s]))
        self.sgd = optimizer(self.modules.values())

    def forward_of(self, module):
        def forward(micro_batch, inputs):
            if inputs is None:
                inputs = tuple(t.to(self.device) for t in batch(self.step, micro_batch))
            assert not self.looks or inputs[1].tolist() == [micro_batch]
            out = module(*inputs)
            if module.last:
                self.losses[-1].append(out.item() if self.looks else out.detach())
                return out / self.program.micro_batches
            return out

        return forward

    def train(self, steps: int, after_step=lambda: None):
        for self.step in range(steps):
            self.losses.append([])
            self.executor.run()
            self.sgd.step()
            self.sgd.zero_grad()
            after_step()


def start(rank: int, world: int, folder: str):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=300))
    return dist.distributed_c10d._get_default_group()


def links_of(program):
    """A group for each direction between two ranks, as on accelerators."""
    with a_group_for_each_direction() as made:
        links = link_groups(program.links, range(program.ranks), None, torch.device("cpu"))
    assert [group.members for group in made] == [tuple(sorted(link)) for link in program.links]
    return links


def save(run: Rank, path: Path):
    torch.save(
        {
            "losses": run.losses,
            "weights": {s: m.state_dict() for s, m in run.modules.items()},
            "records": run.executor.records(),
            "peak_bytes": run.executor.peak_bytes,
        },
        path,
    )


def train_job(rank: int, world: int, folder: str, cases: dict, steps: int, shared_memory: bool):
    """Every case one after the other; leaves folder/<case>.<rank>.pt with losses and weights."""
    from ostinato import _plugin

    group = start(rank, world, folder)
    for number, (name, files) in enumerate(cases.items()):
        program = _plugin.lower(*files)
        # Every other case, where nothing goes another way.
        links = links_of(program) if number % 2 and not shared_memory else {}
        run = Rank(program, rank, group, shared_memory=shared_memory, links=links)
        run.train(steps)
        save(run, Path(folder) / f"{name}.{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def timeout_job(rank: int, world: int, folder: str, files):
    """Rank 0 never starts its step; rank 1 leaves the error and the positions it was seen at."""
    from ostinato import _plugin

    group = start(rank, world, folder)
    run = Rank(_plugin.lower(*files), rank, group, timeout_s=2.0)
    done = Path(folder) / "timeout.pt"
    if rank == 0:
        return wait_for(done)
    seen, over = [], threading.Event()

    def watch():
        while not over.wait(0.01):
            seen.append(str(Position(*run.executor.position())))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run.train(1)
    except _plugin.StepTimeout as error:
        over.set()
        watcher.join()
        torch.save({"error": str(error), "seen": seen}, done.with_suffix(".part"))
        os.replace(done.with_suffix(".part"), done)


def lost_job(rank: int, world: int, folder: str, files, shared_memory: bool):
    """Rank 0 ends without a word in the third forward of its second step; rank 1 leaves what it is told then."""
    from ostinato import _plugin

    # The parent sends it to rank 1 when it sees the end of rank 0.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    group = start(rank, world, folder)
    run = Rank(_plugin.lower(*files), rank, group, shared_memory=shared_memory)
    if rank == 0:
        forward = run.forward_of(run.modules[0])
        run.executor.set_stage(
            0, lambda m, inputs: os._exit(3) if (run.step, m) == (1, 2) else forward(m, inputs)
        )
        run.train(2)
    try:
        run.train(2)
    except _plugin.ExecutionError as error:
        (Path(folder) / "lost.txt").write_text(str(error))
    os._exit(0)


def absent_job(rank: int, world: int, folder: str, files):
    """Rank 0 comes without an executor; rank 1 leaves what it is told."""
    from ostinato import _plugin

    group, said = start(rank, world, folder), Path(folder) / "absent.txt"
    if rank == 0:
        return wait_for(said)
    try:
        Rank(_plugin.lower(*files), rank, group, setup_timeout_s=0.5)
    except _plugin.StepTimeout as error:
        said.write_text(str(error))
