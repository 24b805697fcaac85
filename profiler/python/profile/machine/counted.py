# SPDX-License-Identifier: Apache-2.0
"""Whether torch counts the memory that a device hands out.

check_counted(device)      # raises ProfileError: else every layer would hold 0 bytes
"""

from __future__ import annotations

import os
from typing import Any

from ostinato.profile.errors import ProfileError

UNCOUNTED = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # torch looks whether it is there, whatever its value is


def check_counted(device: Any) -> None:
    if device.place.type == "cuda" and UNCOUNTED in os.environ:
        raise ProfileError(
            f"the environment has {UNCOUNTED}, with which torch does not count the memory of {device.place}: unset it"
        )
