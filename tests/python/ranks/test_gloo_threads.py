# SPDX-License-Identifier: Apache-2.0
"""A process ends when gloo's threads have let go of what they reduced."""

import threading
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from ostinato.ranks import gloo_threads


@contextmanager
def named(work):
    """Work on a thread that is called as gloo's are."""
    known = threading.Event()

    def run():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(gloo_threads.NAME)
        known.set()
        work()

    thread = threading.Thread(target=run)
    thread.start()
    known.wait()
    yield
    thread.join()


def test_a_thread_that_wants_pythons_lock_is_waited_for():
    over = threading.Event()

    def spin():
        while not over.is_set():
            pass

    with named(spin):
        assert not gloo_threads.wait_until_idle(0.2)
        over.set()
    assert gloo_threads.wait_until_idle(10.0)


def test_a_thread_that_waits_for_another_rank_is_not():
    over = threading.Event()
    with named(over.wait):
        assert gloo_threads.wait_until_idle(10.0)
        over.set()


def test_torch_calls_its_threads_so():
    """Where it does not, nothing is waited for, and the process may abort."""
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    group.allreduce([torch.ones(1)]).wait()  # a thread that has run something has its name
    assert gloo_threads._gloo_threads()
