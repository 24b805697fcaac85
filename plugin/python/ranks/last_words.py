# SPDX-License-Identifier: Apache-2.0
"""Prints an uncaught refusal last, and once: rank 0 prints it without a traceback, and no other rank does.

    speak_last()        # idempotent; where a run has a section

Where rank 0 does not print the same message (only one rank has failed) the rank prints it itself. Under torchrun
the agent's own summary, which comes after what ranks print, also ends with the message. `python -X dev` shows
tracebacks.
"""

import hashlib
import sys
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from ostinato.errors import Error, printable, put
from torch.distributed.distributed_c10d import _get_default_store

from . import again
from .launcher import tell_agent

PATIENCE = timedelta(seconds=3)
MADE_BEFORE = (
    "this is the second start of the script, and the first may have made what exists: let the script accept it, or measure in one "
    'run ("auto": "measure") and train in the next'
)


def speak_last() -> None:
    before = sys.excepthook
    if getattr(before, "of_ostinato", False):
        return

    def hook(kind, error, trace):
        if not isinstance(error, Error) or sys.flags.dev_mode:
            before(kind, error, trace)
            if isinstance(error, FileExistsError) and again.folder_of_first_start() is not None:
                _print(f"ostinato: {MADE_BEFORE}")
        else:
            _say("\n".join([f"ostinato: {error}", *getattr(error, "__notes__", ())]))

    hook.of_ostinato = True  # type: ignore[attr-defined]  # a mark on a function
    sys.excepthook = hook


def _say(text: str) -> None:
    if not dist.is_initialized():
        return _print(text)
    key = f"ostinato/said/{hashlib.sha256(text.encode()).hexdigest()}"
    if dist.get_rank() == 0:
        _print(text)
        tell_agent(text)
        with suppress(RuntimeError):
            _let_others_read(key)
    elif not _said(key):
        _print(text)
        tell_agent(text)


def _print(text: str) -> None:
    with suppress(Exception):  # from a stream of the script
        sys.stdout.flush()
    put(printable(text, newlines=True), error=True)


def _let_others_read(key: str) -> None:
    """Waits until other ranks have read it, as this rank may hold the store."""
    store, others = _get_default_store(), dist.get_world_size() - 1
    store.set(key, "said")
    end = time.monotonic() + PATIENCE.total_seconds()
    while store.add(f"{key}/read", 0) < others and time.monotonic() < end:
        time.sleep(0.02)


def _said(key: str) -> bool:
    """Whether rank 0 has said it; tells rank 0 that this rank has seen so."""
    try:
        store = _get_default_store()
        store.wait([key], PATIENCE)
        store.add(f"{key}/read", 1)
    except (dist.DistError, RuntimeError):
        return False
    return True
