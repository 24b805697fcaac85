# SPDX-License-Identifier: Apache-2.0
"""Lowered programs and the executor (bindings/plugin_module.cpp, python_executor.cpp)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

class InputError(ValueError): ...
class ExecutionError(RuntimeError): ...
class StepTimeout(ExecutionError): ...

class Instruction:
    action: str
    stage: int
    micro_batch: int
    peer: int
    peer_stage: int
    start: int
    end: int

class Stage:
    name: str
    ranks: list[int]
    layers: range | tuple[int, ...]
    recomputes: bool
    lane: str
    holds: list[str]
    offload: str
    has_backward: bool
    inputs: list[int]
    outputs: list[int]
    output_bytes: int

class Program:
    stages: list[Stage]
    micro_batches: int
    makespan: int
    lower_bound: int
    predicted: int
    whole_step: int
    beside: list[tuple[str, int, int]]
    planned_peak: list[int]
    plan_sha256: str
    placement_sha256: str
    placement_name: str
    model_sha256: str
    model_layers: list[tuple[str, str]]
    micro_batch_size: int
    counts_hosts: bool
    ranks: int
    links: list[tuple[int, int]]
    keeps_order: bool
    def text(self, rank: int, transfers: bool = True) -> str: ...
    def forwards(self, micro_batches: int, stages: Sequence[int]) -> Program: ...
    def front_stage(self, dynamic_shapes: bool = False) -> int: ...
    def instructions(self, rank: int) -> list[Instruction]: ...

class Executor:
    def __init__(
        self,
        program: Program,
        rank: int,
        process_group: ProcessGroup | None,
        ranks: Sequence[int],
        timeout_s: float = 300.0,
        device: torch.device | None = None,
        dynamic_shapes: bool = False,
        shared_memory: bool = True,
        setup_timeout_s: float = 300.0,
        links: Mapping[int, tuple[ProcessGroup | None, ProcessGroup | None]] = ...,
        programs_change: bool = False,
    ) -> None: ...
    def set_program(self, program: Program) -> None: ...
    def set_stage(
        self,
        stage: int,
        forward: Callable[[int, tuple[Any, ...] | None], Any],
        before_backward: Callable[[int, str], object] | None = None,
        after_backward: Callable[[int, str], object] | None = None,
        may_split: bool = True,
        one_by_one: bool = False,
        offload: Callable[[int, str], object] | None = None,
    ) -> None: ...
    def run(self, name: str = "") -> None: ...
    def abandon(self, why: str) -> None: ...
    def records(self) -> list[tuple[int, int, int]]: ...
    def position(self) -> tuple[str, str, int]: ...
    peak_bytes: int
    unsplit_stages: list[int]

class NearRanks:
    def __init__(self, process_group: ProcessGroup, timeout_s: float = 300.0) -> None: ...
    def are_near(self) -> bool: ...
    def sum(self, tensor: torch.Tensor) -> None: ...
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]: ...
    def broadcast(self, tensor: torch.Tensor, source: int) -> None: ...

def skip_words(state: torch.Tensor, count: int) -> torch.Tensor: ...
def words_between(before: torch.Tensor, after: torch.Tensor, most: int) -> int | None: ...
def lower(plan_path: str, placement_path: str, micro_batches: int = 0) -> Program: ...
