# SPDX-License-Identifier: Apache-2.0
"""gloo's threads let go of what they have reduced before the process ends.

A collective that has returned may still be held by the thread that ran it. Where that thread is the last to
hold a tensor that Python knew, it asks for Python's lock; in an interpreter that is being taken down this
aborts the process, with DeepSpeed alone as well (pytorch/pytorch, pull request 179291).
"""

import time
from pathlib import Path

NAME = "pt_gloo_runloop"  # as torch calls them
PERIOD_S = 0.001


def wait_until_idle(patience_s: float) -> bool:
    """For so long at most: false where one still runs then. One that waits for other ranks counts as idle. Of
    other systems than Linux nothing is known, and nothing waited for.

        wait_until_idle(2.0)    # at the end of a process, with Python's lock to be had
    """
    threads, end = _gloo_threads(), time.monotonic() + patience_s
    before = None
    while (now := [_state(thread) for thread in threads]) != before or any(running for running, _ in now):
        if time.monotonic() >= end:
            return False
        before = now
        time.sleep(PERIOD_S)  # without Python's lock: who waits for it gets it, and has slept once more
    return True


def _gloo_threads() -> list[Path]:
    return [thread for thread in Path("/proc/self/task").glob("*") if _read(thread / "comm").strip() == NAME]


def _state(thread: Path) -> tuple[bool, str]:
    """Whether it runs or could, and how often it has gone to sleep."""
    said = dict(line.split(":\t", 1) for line in _read(thread / "status").splitlines() if ":\t" in line)
    return said.get("State", "X")[0] in "RD", said.get("voluntary_ctxt_switches", "")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""
