# SPDX-License-Identifier: Apache-2.0
"""What measures: clocks, allocator, operator recorder, fits, and the profile file
(bindings/profiler_module.cpp)."""

from collections.abc import Sequence
from typing import Any

import torch

torch_version: str

class InputError(ValueError): ...
class NoTimer(Exception): ...

class Spread:
    median: int
    low: int
    high: int
    repeats: int

class LayerInput:
    def __init__(self, layer: int, bytes: int) -> None: ...
    layer: int
    bytes: int

class LayerCost:
    index: int
    name: str
    same_as: int
    forward: Spread
    backward: Spread
    backward_input: Spread
    backward_weight: Spread
    kept: int
    forward_workspace: int
    backward_workspace: int
    parameters: int
    gradients: int
    optimizer_state: int
    input_bytes: int
    output_bytes: int
    passed: list[LayerInput]
    released: list[LayerInput]
    after: list[LayerInput] | None
    shardable: bool
    lane: str
    digest: str
    step_together: int
    step_alone: int
    recompute: int | None
    step_time: int
    waiting: int
    weight_workspace: int
    inference_workspace: int | None
    reduced: int | None
    labels: int
    sent: int

class OperatorCost:
    layer: int
    name: str
    phase: str
    calls: int
    self_time: Spread
    allocated: int
    flops: int | None

class TransferCost:
    source: int
    target: int
    latency: int
    bytes_per_second: int
    residual: float
    backend: str
    def __init__(
        self, source: int, target: int, latency: int, bytes_per_second: int, backend: str
    ) -> None: ...

class RankCost:
    held: int
    step: int
    buffers: int
    forward: int
    backward: int
    read: int
    computing: int
    average: int

class Completeness:
    complete: bool
    expected: int
    seen: int
    dropped: int
    out_of_range: int
    reason: str

class SizeCost:
    def __init__(self, size: int, forward: Sequence[int], backward: Sequence[int]) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def forward(self) -> list[int]: ...
    @property
    def backward(self) -> list[int]: ...

class Profile:
    model: str
    model_sha256: str
    def set_device(
        self, *, name: str, kind: str, driver: str, torch: str, cuda: str, clocks: str
    ) -> None: ...
    device_name: str
    device_kind: str
    timer: str
    timer_note: str
    warm_up: int
    repeats: int
    micro_batch_size: int
    slices: int
    tokens: int
    sizes: list[SizeCost]
    rank: RankCost
    restrictions: list[tuple[str, str, int, list[int], int]]
    def set_run(self, layers: Sequence[int], micro_batches: int, step: Spread = ...) -> None: ...
    layers: list[LayerCost]
    operators: list[OperatorCost]
    transfers: list[TransferCost]
    completeness: Completeness
    noise: str
    noise_warning: str
    def json(self) -> str: ...
    def write(self, path: str) -> None: ...

class Losses:
    def __iadd__(self, other: Losses) -> Losses: ...
    def completeness(self) -> Completeness: ...

class DeviceTimes:
    layers: list[tuple[int, str, int, int, int]]
    peak_allocated: int
    overhead: int
    losses: Losses

class DeviceTimer:
    name: str
    def flush(self) -> DeviceTimes: ...
    def stop(self) -> DeviceTimes: ...

class OperatorRecorder:
    def __init__(self, events_per_thread: int = ..., threads: int = ...) -> None: ...
    def start(self, flops: bool = False, timer: DeviceTimer | None = None) -> None: ...
    def stop(self) -> None: ...
    def clear(self) -> None: ...
    def begin_pass(self, layer: int, phase: str, micro_batch: int = 0) -> None: ...
    def end_pass(self) -> None: ...
    def rows(self, times: DeviceTimes = ...) -> list[OperatorCost]: ...
    recorded: int
    dropped: int
    unfinished: int
    out_of_range: int

class MemoryLog:
    def __init__(self, events: int = ...) -> None: ...
    def start(self, devices: bool) -> None: ...
    def stop(self) -> None: ...
    events: list[tuple[int, int, int, int]]
    dropped: int

class Range:
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...

class BackwardHalves:
    def __init__(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None: ...
    can_split: bool
    has_input_half: bool
    has_weight_half: bool
    def run_inputs(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    def cut(self) -> None: ...
    def run_weights(self) -> None: ...

def read_profile(path: str) -> Profile: ...
def choose_timer(device: str, profiler_running: str = "") -> tuple[DeviceTimer, str]: ...
def install_allocator() -> None: ...
def remove_allocator() -> None: ...
def live_bytes() -> int: ...
def peak_bytes() -> int: ...
def reset_peak() -> None: ...
def now() -> int: ...
def spread_of(samples: Sequence[int]) -> Spread: ...
def fit_link(
    source: int, target: int, samples: Sequence[tuple[int, int]], backend: str = ""
) -> TransferCost: ...
def cupti_status() -> dict[str, Any]: ...
