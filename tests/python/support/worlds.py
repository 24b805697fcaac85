# SPDX-License-Identifier: Apache-2.0
"""Worlds of real processes over gloo, started once and used by many tests.

    with World(4) as world:
        results = world.run(training.train, options)      # one result a rank; the function must be importable

DeepSpeed takes seconds to import, and a training step here takes milliseconds: so all ranks are forked from
one process that has imported it. Every engine leaves process groups behind, with threads in gloo of which each
wakes up a hundred times a second. They are destroyed after each run; what holds on to some ends after a few
runs, with its process.
"""

import contextlib
import functools
import gc
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import wait
from unittest import mock

# None of them starts a thread. What torch, DeepSpeed and ostinato import only where it is used takes longer than most
# trainings here: dynamo with an optimizer, muon (which compiles) with ZeRO.
LOADED = [
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "ostinato._plugin",
    "ostinato.deepspeed.start.start",
    "setuptools",
    "torch._dynamo",
    "torch.distributed.checkpoint",
]
TIMEOUT = 300  # seconds; generous, for busy machines
GRACE = 20  # seconds for the other ranks once one has failed
RUNS = 8  # of one world; then it starts anew, which takes 0.25 s of CPU for 2 ranks, and 0.5 for 4


@functools.cache
def forked():
    """multiprocessing's context whose processes begin with LOADED imported, and with DeepSpeed on the CPU."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with mock.patch.dict(os.environ, environment()):
        forkserver.ensure_running()
    return context


class World:
    """`size` ranks, each a process that runs the functions it is sent. A world that a failure left out of
    step is replaced. `timeout`: seconds that a run may take; `runs`: so many, then it starts anew."""

    def __init__(self, size: int, timeout: int = TIMEOUT, runs: int = RUNS):
        self.size, self._timeout, self._limit = size, timeout, runs
        self._start()

    def _start(self) -> None:
        port = free_port()
        self._runs = 0
        self._pipes, self._processes = [], []
        for rank in range(self.size):
            ours, theirs = forked().Pipe()
            process = forked().Process(target=_serve, args=(rank, self.size, port, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function, *args):
        """function(*args) on every rank at once; the results by rank. Raises AssertionError with the ranks'
        tracebacks."""
        if self._runs == self._limit:
            self.restart()
        self._runs += 1
        for pipe in self._pipes:
            pipe.send((function, args))
        answers = self._collect()
        failed = [f"rank {rank}:\n{value}" for rank, (good, value) in sorted(answers.items()) if not good]
        silent = sorted(set(range(self.size)) - set(answers))
        if failed or silent:
            self.restart()
        assert not failed, "\n".join(failed) + (f"\n(ranks {silent} did not answer)" if silent else "")
        assert not silent, f"ranks {silent} of {self.size} did not answer in {function.__name__}"
        for pipe in self._pipes:  # not before all have answered: another rank may still wait for a message
            with contextlib.suppress(OSError):  # it has ended since
                pipe.send(None)
        return [answers[rank][1] for rank in range(self.size)]

    def _collect(self) -> dict:
        """Answers by rank; the others have little time left once one has failed."""
        answers, pending = {}, dict(zip(self._pipes, range(self.size), strict=True))
        end = time.monotonic() + self._timeout
        while pending and (ready := wait(list(pending), max(0, end - time.monotonic()))):
            for pipe in ready:
                rank = pending.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = (False, "the process ended")
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + GRACE)
        return answers

    def end(self, function, *args) -> list[int | None]:
        """function(*args), which ends the process, on every rank; the processes' statuses, None of one that
        goes on."""
        for pipe in self._pipes:
            pipe.send((function, args))
        end = time.monotonic() + self._timeout
        for process in self._processes:
            process.join(max(0, end - time.monotonic()))
        return [process.exitcode for process in self._processes]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def run_alone(function, *args, timeout: int = TIMEOUT) -> None:
    """function(*args), which may end its process, in one that no launcher has started, but which has LOADED
    imported."""
    with tempfile.NamedTemporaryFile("r") as printed:
        process = forked().Process(target=_alone, args=(function, args, printed.name))
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        assert process.exitcode == 0, f"{function.__name__}: {process.exitcode}: {printed.read()[-2000:]}"


def free_port() -> int:
    """Below those that the system gives away by itself: nobody takes it between now and its use."""
    for port in iter(lambda: random.SystemRandom().randrange(20_000, 30_000), None):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


MACHINE = {  # for each process; the last, for torch asks for the name of each peer's address, and a name server may not answer
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "RES_OPTIONS": "timeout:1 attempts:1",
}


def environment(rank: int = 0, size: int = 1, port: int = 0) -> dict[str, str]:
    """MACHINE, and what torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **MACHINE,
    }


def without_launcher() -> dict[str, str]:
    """This process's environment, and MACHINE, without what a launcher would set."""
    unset = environment().keys() - MACHINE.keys()
    return {name: value for name, value in (os.environ | MACHINE).items() if name not in unset}


def _alone(function, args: tuple, printed: str) -> None:
    for name in environment().keys() - MACHINE.keys():
        os.environ.pop(name, None)
    into = os.open(printed, os.O_WRONLY)
    os.dup2(into, 1)
    os.dup2(into, 2)
    _prepare()
    function(*args)


def _serve(rank: int, size: int, port: int, pipe) -> None:
    os.environ.update(environment(rank, size, port))
    sys.stdout = open(os.devnull, "w")  # DeepSpeed is talkative
    multiprocessing.set_start_method("fork", force=True)  # as in a user's process: a data loader's workers
    try:
        _begin()
        while True:
            asked = pipe.recv()
            if asked is None:
                _end_groups()
                continue
            function, args = asked
            try:
                answer = function(*args)
                gc.collect()  # or an engine of this run tells its end within the next, which may read what is printed
                pipe.send((True, answer))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    except EOFError:
        pass
    except Exception:
        pipe.recv()
        pipe.send((False, traceback.format_exc()))


def _end_groups() -> None:
    """All but the world's. torch names a group by how many there are: the next ones must not find in the store what
    these have written there, so their names stay."""
    import deepspeed.comm
    import torch.distributed as dist
    from deepspeed.runtime.pipe import p2p
    from deepspeed.utils import groups

    p2p._grid = groups.mpu = None  # they hold the last engine's
    names = dist.distributed_c10d._world.pg_names
    for group, name in list(names.items()):
        if isinstance(group, dist.ProcessGroup) and group is not dist.group.WORLD:
            deepspeed.comm.destroy_process_group(group)
            names[object()] = name


def _begin() -> None:
    _prepare()
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    import deepspeed
    from deepspeed.ops import __compatible_ops__

    import ostinato.deepspeed  # noqa: F401

    __compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
    costs_of_blocks()
    _streams_on_a_processor()
    deepspeed.logger.setLevel("ERROR")
    gc.freeze()  # 400,000 objects that stay, which each collection would visit: as much time as a training


def costs_of_blocks() -> None:
    """ "auto" measures them in two fresh processes, which import DeepSpeed: seconds of each test, and the same for all. test_profile_blocks.py and
    tests/clients/test_clients.py measure them."""
    from ostinato.profile.machine import block_time

    block_time.measure_blocks = lambda size, touched: block_time.Cost(
        forward=200_000, backward=300_000, read=20_000, step=1_000_000
    )


def _streams_on_a_processor() -> None:
    """DeepSpeed 0.19.7 asks every accelerator for a stream before it checkpoints activations, which it then
    does not use."""
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().Stream is None:
        type(get_accelerator()).Stream = lambda self, **_: None
