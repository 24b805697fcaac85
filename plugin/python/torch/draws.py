# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a sharded stage are given the same data, and draw the same random numbers, as the contract of
ostinato.nn asks: with different masks, each would train a different model, and with different data none.

    draws = Draws(device)
    with draws.noted(stage, micro_batch, given):       # on every rank of a sharded stage
        module(*inputs)
    said = unlike(program.stages, [Draws.text() of each rank])     # "" where all are alike
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

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
        self._noted: dict[str, str] = {}

    @contextmanager
    def noted(self, stage: int, micro_batch: int, given: Any) -> Iterator[None]:
        """`given`: by the script, to this stage."""
        key, before = f"{stage} {micro_batch}", self._generators()
        self._noted[f"{key} data"] = digest(tree_leaves(given))
        yield
        if (after := self._generators()) != before:
            self._noted[f"{key} draws"] = after

    def text(self) -> str:
        return json.dumps(self._noted)

    def _generators(self) -> str:
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(torch.get_device_module(self._device).get_rng_state(self._device))
        return digest(states)


def digest(values: Sequence) -> str:
    """Of the tensors among them; not of those that train, which ranks may compute with different rounding, nor of
    subclasses, which may be distributed."""
    made = sha256()
    for value in values:
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.requires_grad:
            made.update(f"{value.dtype} {tuple(value.shape)}".encode())
            made.update(
                value.cpu().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    return made.hexdigest()


def unlike(stages: Sequence, said: Sequence[str]) -> str:
    """What is wrong with the first stage with ranks that are not alike, in words; "" where there is none. `said`:
    Draws.text() by rank."""
    noted = [json.loads(text) for text in said]
    for key in dict.fromkeys(key for of_rank in noted for key in of_rank):
        stage, _, what = key.split()
        if len({noted[rank].get(key) for rank in stages[int(stage)].ranks}) > 1:
            return f'stage "{stages[int(stage)].name}" is sharded, and {DATA if what == "data" else DRAWS}'
    return ""
