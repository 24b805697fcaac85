# SPDX-License-Identifier: Apache-2.0
"""What the graphs of a stage keep, copied to the host after its forward and back before its backward, where the plan
says so (docs/formats.md, offloading).

    kept = Offloaded()
    with kept.of(3, weights):          # the forward of micro-batch 3; weights stay where they are
        outputs = stage(inputs)
    kept.move(3, "O")                  # on the stream of a lane: the memory is free when what is issued there has ended
    kept.move(3, "L")                  # before the backward

Whole storages move, each once, however many operators have saved views of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import Error


class NeedsAccelerator(Error, RuntimeError):
    """The plan offloads a stage, and its rank computes in the memory that it would be offloaded to."""


def check(program: Any, device: torch.device) -> None:
    """Raises NeedsAccelerator."""
    offloaded = [stage.name for stage in program.stages if stage.offload]
    if offloaded and device.type == "cpu":
        raise NeedsAccelerator(
            f"the plan offloads stage {offloaded[0]}, which saves nothing on a CPU: run it on accelerators, or search a "
            'placement without the blocks of kind "offload" and "load"'
        )


class Storage:
    """All bytes of one: in the memory of the device, or of the host."""

    def __init__(self, tensor: torch.Tensor):
        self._here: torch.Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage()
        )
        self._host: torch.Tensor | None = None
        self._device = tensor.device

    def leave(self) -> None:
        here = self._here
        assert here is not None
        pinned = self._device.type != "cpu"
        host = torch.empty(here.shape, dtype=here.dtype, pin_memory=pinned, device="cpu")
        host.copy_(here, non_blocking=True)
        self._used_here(here)
        self._here, self._host = None, host

    def come_back(self) -> None:
        assert self._host is not None
        self._here = torch.empty(self._host.shape, dtype=self._host.dtype, device=self._device)
        self._here.copy_(self._host, non_blocking=True)
        self._host = None

    def there(self) -> torch.Tensor:
        """For the stream that is current."""
        if self._here is None:
            raise RuntimeError("a backward needs what was offloaded, and has not come back")
        self._used_here(self._here)
        return self._here

    def _used_here(self, tensor: torch.Tensor) -> None:
        """The allocator must not give its memory away before what is on the current stream has ended."""
        if self._device.type != "cpu":
            tensor.record_stream(torch.accelerator.current_stream(self._device))


@dataclass(frozen=True)
class View:
    """A tensor that an operator has saved."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        here = self.storage.there()
        made = torch.empty(0, dtype=self.dtype, device=here.device)
        return made.set_(here.untyped_storage(), self.offset, self.size, self.stride)


class Offloaded:
    """Of one stage. Nothing of a micro-batch is left here once its backward has run."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Storage]] = {}  # by micro-batch, until it has come back

    @contextmanager
    def of(self, micro_batch: int, stay: Iterable[torch.Tensor]) -> Iterator[None]:
        """Around a forward. `stay`: weights, and whatever else lives longer than the micro-batch."""
        staying = {tensor.untyped_storage().data_ptr() for tensor in stay}
        found: dict[int, Storage] = {}

        def pack(tensor: torch.Tensor) -> Any:
            plain = tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
            at = tensor.untyped_storage().data_ptr() if plain else 0
            if not plain or at == 0 or at in staying:
                return tensor
            if at not in found:
                found[at] = Storage(tensor)
            return View(found[at], tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

        def unpack(saved: Any) -> torch.Tensor:
            return saved.tensor() if isinstance(saved, View) else saved

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
        self._kept[micro_batch] = list(found.values())

    def move(self, micro_batch: int, action: str) -> None:
        """`action`: "O", to the host, or "L", back."""
        for storage in self._kept[micro_batch]:
            storage.leave() if action == "O" else storage.come_back()
        if action == "L":
            del self._kept[micro_batch]
