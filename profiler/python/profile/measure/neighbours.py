# SPDX-License-Identifier: Apache-2.0
"""Other processes that compute while a layer is measured, as the other ranks of a training do.

    with busy_neighbours(chain.layers, beside=1):
        samples = in_turns(chain.layers, job)

Cores share caches, the way to memory and the power that sets their clock, so a layer takes longer while its
neighbours compute: 1.2 times as long on the two cores of a small virtual machine, where a profile of one rank
alone promised steps that no plan reached.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import torch

from ostinato.errors import counted
from ostinato.profile.errors import ProfileError
from ostinato.profile.model.layer import Layer, run_both_ways

PR_SET_PDEATHSIG = 1


def most_beside(ranks: int) -> int:
    """Processes that compute beside one of `ranks` ranks on this host, as far as each has separate cores for
    its threads."""
    return max(0, min(ranks, len(os.sched_getaffinity(0)) // torch.get_num_threads()) - 1)


@contextmanager
def busy_neighbours(layers: Sequence[Layer], beside: int) -> Iterator[None]:
    """While it lasts, copies of this process run forward and backward of `layers` over and over, as busy as
    `beside` other ranks. Each has some of the layers, as a stage, so that together they hold the gradients of
    one model. Raises ProfileError at the end where one of them ended early, for then fewer processes
    computed at the same time than the profile says.

    The layers and their inputs are on the CPU.
    """
    # Of one thread each: OpenMP's threads are not there after a fork, and would be waited for.
    copies = beside * torch.get_num_threads()
    started = [fork([*layers[number::copies]] or [layers[-1]]) for number in range(copies)]
    try:
        yield
        gone = [process for process in started if os.waitpid(process, os.WNOHANG)[0]]
    finally:
        for process in started:
            end(process)
    if gone:
        raise ProfileError(
            f"{len(gone)} of {counted(copies, 'process')} that computed at the same time ended early: use --beside 0"
        )


def fork(layers: Sequence[Layer]) -> int:
    """The process that runs them."""
    parent = os.getpid()
    return os.fork() or compute(parent, layers)


def compute(parent: int, layers: Sequence[Layer]) -> NoReturn:
    """Until the parent ends it, or ends. What a layer raises goes to standard error."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
        torch.set_num_threads(1)
        while os.getppid() == parent:
            for layer in layers:
                run_both_ways(layer)
    except BaseException as error:
        os.write(
            2,
            f"ostinato profile: a process that computes at the same time: {type(error).__name__}: {error}\n".encode(),
        )
    os._exit(1)


def end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):  # it has ended, and was waited for
        return
