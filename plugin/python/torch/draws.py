# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a sharded stage are given the same data and draw the same random numbers, as the contract of
ostinato.nn asks: each computes a part, and parts of different batches, or under different masks, make no whole.

Data are compared where ranks cannot have computed them with different rounding: integer and Boolean tensors, numbers,
texts; of any other tensor its shape and dtype.

    draws = Draws(device)
    with draws.noted(stage, micro_batch, given):       # on every rank of a sharded stage
        module(*inputs)
    said = unlike(program.stages, [Draws.text() of each rank])     # "" where all are alike
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch

from .batches import PLAIN, leaves

EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

DRAWS = (
    "draws different random numbers on each of its ranks, which would train different models: let its layers draw from a "
    "generator with one seed on all of them, or place what draws in a stage on one device"
)
DATA = (
    "its ranks were given different inputs, targets or keyword arguments, of which each would compute a part: give all of "
    "them the same, as of a generator with one seed, or broadcast them from one rank"
)


class Draws:
    """What forwards are given, and what they have left of torch's generators, where they draw from them."""

    def __init__(self, device: torch.device):
        self._device = device
        self._noted: defaultdict[str, Any] = defaultdict(sha256)  # by stage and kind, of all micro-batches

    @contextmanager
    def noted(self, stage: int, micro_batch: int, given: Any) -> Iterator[None]:
        """`given`: by the script, to this stage."""
        before = self._generators()
        self._noted[f"{stage} data"].update(described(given))
        yield
        if (after := self._generators()) != before:
            self._noted[f"{stage} draws"].update(f"{micro_batch} ".encode() + after)

    def text(self) -> str:
        return json.dumps({key: noted.hexdigest() for key, noted in self._noted.items()})

    def _generators(self) -> bytes:
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(torch.get_device_module(self._device).get_rng_state(self._device))
        return described(states)


def described(given: Any) -> bytes:
    """What is compared of it."""
    made = []
    for value in leaves(given):
        if isinstance(value, PLAIN):
            made.append(repr(value).encode())
        elif torch.is_tensor(value) and not value.is_nested:
            made.append(f"{value.dtype} {tuple(value.shape)}".encode())
            # A subclass may be distributed.
            if type(value) is torch.Tensor and value.layout is torch.strided and value.dtype in EXACT:
                made.append(value.cpu().numpy().tobytes())
    return b"; ".join(made)


def unlike(stages: Sequence, said: Sequence[str]) -> str:
    """What is wrong with the first stage with ranks that are not alike, in words; "" where there is none. `said`:
    Draws.text() by rank."""
    noted = [json.loads(text) for text in said]
    for key in dict.fromkeys(key for of_rank in noted for key in of_rank):
        stage, what = key.split()
        if len({noted[rank].get(key) for rank in stages[int(stage)].ranks}) > 1:
            return f'stage "{stages[int(stage)].name}" is sharded, and {DATA if what == "data" else DRAWS}'
    return ""
