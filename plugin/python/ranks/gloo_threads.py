# SPDX-License-Identifier: Apache-2.0
"""Waits until gloo's threads have released their tensors, before the process ends.

The thread that ran a collective may still hold it after it has returned. If that thread is the last to hold a
tensor that Python knew, it takes Python's lock; in an interpreter that is shutting down this aborts the process,
with DeepSpeed alone as well (pytorch/pytorch, pull request 179291).
"""

import time
from pathlib import Path

NAME = "pt_gloo_runloop"  # torch's name for them
PERIOD_S = 0.001


def wait_until_idle(patience_s: float) -> bool:
    """Waits at most `patience_s`; false if a thread still runs then. A thread that waits for other ranks counts
    as idle. Does not wait on systems other than Linux.

        wait_until_idle(2.0)    # at the end of a process, while Python's lock is available
    """
    threads, end = _gloo_threads(), time.monotonic() + patience_s
    before = None
    while (now := [_state(thread) for thread in threads]) != before or any(running for running, _ in now):
        if time.monotonic() >= end:
            return False
        before = now
        # Releases Python's lock: a thread that waits for it gets it, and has slept once more.
        time.sleep(PERIOD_S)
    return True


def _gloo_threads() -> list[Path]:
    return [thread for thread in Path("/proc/self/task").glob("*") if _read(thread / "comm").strip() == NAME]


def _state(thread: Path) -> tuple[bool, str]:
    """Whether the thread runs or is ready to, and how often it has gone to sleep."""
    said = dict(line.split(":\t", 1) for line in _read(thread / "status").splitlines() if ":\t" in line)
    return said.get("State", "X")[0] in "RD", said.get("voluntary_ctxt_switches", "")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""
