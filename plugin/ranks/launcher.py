# SPDX-License-Identifier: Apache-2.0
"""Whether the launcher that started this rank (torchrun, deepspeed) is still there: one that is killed ends nobody, and its ranks would
train on with no one to stop them.
"""

import os

STARTED_BY = ("TORCHELASTIC_RUN_ID", "CROSS_RANK")  # torchrun's, DeepSpeed's


def agent_has_the_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Launcher:
    """The parent of this process, from now on. A rank that was started by hand may outlive its shell."""

    def __init__(self):
        self._parent = os.getppid() if any(name in os.environ for name in STARTED_BY) else None

    def gone(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent
