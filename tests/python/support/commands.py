# SPDX-License-Identifier: Apache-2.0
"""ostinato's command line, in a process of its own."""

import subprocess
import sys
from pathlib import Path


def begun(*words, **options) -> subprocess.Popen:
    """`ostinato WORDS`, which runs. `options`: of Popen."""
    return subprocess.Popen([sys.executable, "-m", "ostinato", *map(str, words)], **options)


def ostinato(*words, **options) -> subprocess.CompletedProcess[str]:
    """`ostinato WORDS`, which has ended. `options`: of subprocess.run()."""
    command = [sys.executable, "-m", "ostinato", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def output_of(*words) -> str:
    """What `ostinato WORDS` prints, which must succeed."""
    done = ostinato(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def hard_placement(path: Path) -> Path:
    """Uneven halves on 16 devices, in little memory: a search of many micro-batches does not end."""
    output_of(
        "placement", "wave", "--devices", 16, "--forward", "1.01ms", "--backward", "1.37ms", "--weight", "1.13ms",
        "--capacity", "20MiB", "--output", path,
    )  # fmt: skip
    return path
