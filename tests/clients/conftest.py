# SPDX-License-Identifier: Apache-2.0
"""Ranks are forked from a process that has imported DeepSpeed, as in tests/python."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))
