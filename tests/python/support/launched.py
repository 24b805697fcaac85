# SPDX-License-Identifier: Apache-2.0
"""Ranks that a test starts by itself, as torchrun would."""

import os
import sys

TIMEOUT = 300  # seconds


def environment(**more):
    clean = {
        key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    return clean | {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more


def torchrun(ranks: int, *words: object) -> list[str]:
    """The command that starts so many ranks of a script, or of "-m", MODULE, on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, *map(str, words)]
