# SPDX-License-Identifier: Apache-2.0
"""Requests that come at any time, and how the ranks that take them learn which is next.

requests = Requests()
requests.put(tokens)                # from any thread; a tuple where the model takes several tensors
requests.close()                    # no more will come
"""

import io
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .checks import PipelineError

REQUEST, NOTHING, END = 0, -1, -2  # what comes next; NOTHING: no request right now


class Requests:
    """A queue for Pipeline.serve(): while it is empty, requests in flight continue, and no rank gives up."""

    def __init__(self):
        # Of tuples of one; after close() None, which stays last.
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._closed, self._lock = False, threading.Lock()

    def put(self, inputs: Any) -> None:
        with self._lock:
            if self._closed:
                raise PipelineError(
                    "put() after close(): these Requests take no more, so put() first, or make new Requests() for another serve()"
                )
            self._queue.put((inputs,))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._queue.put(None)

    def take(self, seconds: float) -> tuple[int, Any]:
        """REQUEST and its inputs; NOTHING if none comes within `seconds`; END after close()."""
        try:
            entry = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return NOTHING, None
        if entry is None:
            self._queue.put(None)  # for the next call
            return END, None
        return REQUEST, entry[0]


class Listed:
    """Any iterable as requests, taken as fast as the pipeline takes them. None in it means no request right
    now."""

    def __init__(self, requests: Iterable):
        self._requests = requests
        self._iterator: Iterator | None = None

    def take(self, seconds: float) -> tuple[int, Any]:
        if self._iterator is None:  # not before: where it raises, the other ranks hear of it
            self._iterator = iter(self._requests)
        for inputs in self._iterator:
            return (NOTHING, None) if inputs is None else (REQUEST, inputs)
        return END, None


class Intake:
    """What each slot takes, on a rank that takes inputs. The front draws requests, and tells the other ranks.

    lead: from lead_of(). readers: stages of this rank that take inputs. front: its global rank. group: of all
    ranks that take inputs; None if that is only the front. device: of this rank.
    """

    def __init__(
        self,
        requests: Any,
        lead: int,
        readers: int,
        patience_s: float,
        front: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
    ):
        self._requests = (
            requests if hasattr(requests, "take") else Listed(() if requests is None else requests)
        )
        self._lead, self._readers, self._patience_s, self._group = lead, readers, patience_s, group
        self._device = device
        ranks = [] if group is None else dist.get_process_group_ranks(group)
        self._front = None if group is None or dist.get_rank() == front else front  # None: this rank
        self._others = [rank for rank in ranks if rank != front]
        self._count, self._first = 0, (NOTHING, None)
        self._told: list[dist.Work] = []
        self.begin()

    def wait(self) -> bool:
        """On the front, between runs: waits for a request for the next run. False: no more will come."""
        while self._first[0] == NOTHING:
            self._first = self._requests.take(self._patience_s)
        return self._first[0] == REQUEST

    def begin(self) -> None:
        """Begins a run. Nothing is in flight, and every slot of the last run was taken."""
        for work in self._told:
            work.wait()
        self._told = []
        self._next = 0
        self._last = 0  # slot of the last request
        self._drawn: dict[int, list] = {}  # by slot: readers to come, number or NOTHING, inputs

    def of(self, slot: int) -> tuple[int, Any]:
        """The number of the slot's request and its inputs; NOTHING if it is empty. Each reader asks once."""
        while self._next <= slot:
            self._drawn[self._next] = [
                self._readers,
                *(self._draw() if self._front is None else self._hear()),
            ]
            self._next += 1
        entry = self._drawn[slot]
        entry[0] -= 1
        if entry[0] == 0:
            del self._drawn[slot]
        return entry[1], entry[2]

    def _draw(self) -> tuple[int, Any]:
        kind, inputs = self._first
        if kind == REQUEST:
            self._first = (NOTHING, None)
        elif kind == NOTHING:
            owed = self._next - self._last <= self._lead
            kind, inputs = self._requests.take(0 if owed else self._patience_s)
        number = NOTHING
        if kind == REQUEST:
            number, self._last = self._count, self._next
            self._count += 1
        elif kind == END:
            self._first = (END, None)
        if self._others:
            self._tell(packed((number, inputs)))
        return number, inputs

    def _tell(self, entry: bytes) -> None:
        bytes_ = torch.frombuffer(bytearray(entry), dtype=torch.uint8)
        for rank in self._others:
            for tensor in (torch.tensor([bytes_.numel()], device="cpu"), bytes_):
                sent = dist.isend(tensor, rank, group=self._group)
                assert sent is not None  # this rank is in the group
                self._told.append(sent)

    def _hear(self) -> tuple[int, Any]:
        size = torch.empty(1, dtype=torch.int64, device="cpu")
        dist.recv(size, self._front, group=self._group)
        entry = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        dist.recv(entry, self._front, group=self._group)
        return unpacked(entry.numpy().tobytes(), self._device)


PLAIN = (bool, int, float, complex, str, bytes, type(None))


def packed(entry: Any) -> bytes:
    """Packs tensors, numbers, texts, and tuples, lists and dicts of them. Raises TypeError for anything else:
    reading an entry from another rank must not run arbitrary code.
    """
    into = io.BytesIO()
    torch.save(_checked(entry), into)
    return into.getvalue()


def unpacked(entry: bytes, device: torch.device) -> Any:
    """With tensors of the sender's accelerator on `device`: torch would put them on the accelerator with the same
    number, which is another rank's."""

    def here(storage: Any, place: str) -> Any:
        return storage if place == "cpu" else storage.to(device=device)

    return torch.load(io.BytesIO(entry), map_location=here, weights_only=True)


def _checked(value: Any) -> Any:
    """Without what its tensors are parts of: torch would save a whole batch for one row."""
    if type(value) in (tuple, list):
        return type(value)(map(_checked, value))
    if type(value) is dict:
        return {_checked(key): _checked(part) for key, part in value.items()}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return value.detach().clone() if _is_part(value) else value
    if type(value) not in PLAIN:
        raise TypeError(
            f"a request holds a {type(value).__name__}, which cannot be sent to the other ranks that take inputs: use tensors, numbers, "
            "strings, or tuples, lists and dicts of them"
        )
    return value


def _is_part(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.untyped_storage().nbytes() > tensor.nbytes
    )


def lead_of(program, receives_wait: bool) -> int:
    """The most slots that any rank begins before it is done with an earlier one: these must come in before that
    one can go out."""
    lead = 0
    for rank in range(program.ranks):
        latest = 0
        for instruction in program.instructions(rank):
            if instruction.action.startswith("RECV") and not receives_wait:
                continue
            latest = max(latest, instruction.micro_batch)
            lead = max(lead, latest - instruction.micro_batch)
    return lead
