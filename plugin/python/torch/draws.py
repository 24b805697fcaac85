# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a sharded stage draw the same random numbers, as the contract of ostinato.nn asks:
with different masks, each would train a different model.

    draws = Draws(device)
    with draws.noted(stage, micro_batch):       # on every rank of a sharded stage
        module(*inputs)
    said = unlike(program.stages, [Draws.text() of each rank])     # "" where all drew the same
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

import torch


class Draws:
    """What forwards have left of torch's generators, where they draw from them."""

    def __init__(self, device: torch.device):
        self._device = device
        self._left: dict[str, str] = {}

    @contextmanager
    def noted(self, stage: int, micro_batch: int) -> Iterator[None]:
        before = self._digest()
        yield
        if (after := self._digest()) != before:
            self._left[f"{stage} {micro_batch}"] = after

    def text(self) -> str:
        return json.dumps(self._left)

    def _digest(self) -> str:
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(torch.get_device_module(self._device).get_rng_state(self._device))
        return sha256(b"".join(state.numpy().tobytes() for state in states)).hexdigest()


def unlike(stages: Sequence, said: Sequence[str]) -> str:
    """The name of the first stage whose ranks have drawn different numbers; "" where there is none. `said`:
    Draws.text() by rank."""
    left = [json.loads(text) for text in said]
    for drawn in dict.fromkeys(key for of_rank in left for key in of_rank):
        stage = stages[int(drawn.split()[0])]
        if len({left[rank].get(drawn) for rank in stage.ranks}) > 1:
            return stage.name
    return ""
