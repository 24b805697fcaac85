# SPDX-License-Identifier: Apache-2.0
"""torch.autocast() around step(): for forwards and losses alone, as in one process. Backwards under it round
their sums to half precision, which torch advises against."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class Autocast:
    """As it was switched on where this is made."""

    def __init__(self, device: torch.device):
        self._found = {
            kind: torch.get_autocast_dtype(kind)
            for kind in ("cpu", device.type)
            if torch.is_autocast_enabled(kind)
        }

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, dtype in self._found.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=on))
            yield
