# SPDX-License-Identifier: Apache-2.0
"""The launcher that started this rank (torchrun, deepspeed). If it is killed, its ranks do not end by themselves,
and would train on with nothing to stop them. torchrun's agent prints at the end what a rank has told it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

STARTED_BY = ("TORCHELASTIC_RUN_ID", "CROSS_RANK")  # torchrun's, DeepSpeed's


def agent_has_the_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Launcher:
    """The parent of this process at this time. A rank that was started by hand may outlive its shell."""

    def __init__(self):
        self._parent = os.getppid() if any(name in os.environ for name in STARTED_BY) else None

    def gone(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent


def tell_agent(text: str) -> None:
    """Writes `text` in the format that torchrun's agent reads."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError), open(path, "w") as file:
            json.dump(
                {
                    "message": {
                        "message": text,
                        "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))},
                    }
                },
                file,
            )


def end_with(text: str, say: Callable[[str], None]) -> None:
    """Ends the process from a thread, where the main thread is stuck: after say(text), without finalizers."""
    try:
        say(text)
        tell_agent(f"ostinato: {text}")
        sys.stdout.flush()
    finally:
        os._exit(1)
