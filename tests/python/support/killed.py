# SPDX-License-Identifier: Apache-2.0
"""A function in a process of its own that is killed at a chosen point: at its nth system call (ptrace),
before or behind it, or at a byte of a file that it writes (RLIMIT_FSIZE). Linux.

    calls = system_calls(write)                 # how many stops there are: two a call
    killed_at_call(write, calls // 2)
    killed_at_byte(write, 1000)
"""

import ctypes
import os
import resource
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL = 0, 24  # sys/ptrace.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int = 0) -> None:
    if _libc.ptrace(request, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def _forked(function: Callable[[], object], traced: bool) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            if traced:
                _ptrace(_TRACEME)
                os.kill(os.getpid(), signal.SIGSTOP)
            function()
            status = 0
        finally:
            os._exit(status)
    return child


def _stop_at(function: Callable[[], object], stop: int | None) -> int:
    """Kills at that stop; the stops until it ended by itself."""
    child, passed = _forked(function, traced=True), 0
    _, status = os.waitpid(child, 0)
    while os.WIFSTOPPED(status) and passed != stop:
        _ptrace(_SYSCALL, child)
        _, status = os.waitpid(child, 0)
        passed += 1
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        assert status == 0, f"the writer ended with {status}"
    return passed


def system_calls(function: Callable[[], object]) -> int:
    return _stop_at(function, None)


def killed_at_call(function: Callable[[], object], stop: int) -> None:
    _stop_at(function, stop)


def killed_at_byte(function: Callable[[], object], byte: int) -> bool:
    """False where no file became so long."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (byte, byte))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        function()

    _, status = os.waitpid(_forked(limited, traced=False), 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGXFSZ, f"the writer ended with {status}"
    return status != 0
