"""The device that a model is profiled on: where its tensors lie, its memory, its clock, and what a profile says about it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ostinato import _profiler


def cpu_fields() -> dict[str, str]:
    """Of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def cpu_name() -> str:
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def cpu_clocks() -> str:
    """Frequency now, its governor where the system tells, and threads of an operator."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    parts = [f"{cpu_fields()['cpu MHz']} MHz" if "cpu MHz" in cpu_fields() else "unknown frequency"]
    try:
        parts.append(f"governor {governor.read_text().strip()}")
    except OSError:
        parts.append("governor unknown")
    parts.append(f"{torch.get_num_threads()} threads")
    return ", ".join(parts)


class Cpu:
    """Work is done when a call returns: its time is the steady clock's, its memory the counting allocator's."""

    place = torch.device("cpu")
    own_clock = False  # whether a DeviceTimer tells its times (device/device_timer.h)

    def description(self) -> dict[str, str]:
        """The profile's `device`, but for its kind and torch."""
        return {"name": cpu_name(), "driver": "", "cuda": torch.version.cuda or "", "clocks": cpu_clocks()}

    def synchronize(self) -> None:
        """Nothing is waited for."""

    def live_bytes(self) -> int:
        return _profiler.live_bytes()

    def peak_bytes(self) -> int:
        return _profiler.peak_bytes()

    def reset_peak(self) -> None:
        _profiler.reset_peak()

    @contextmanager
    def counted_memory(self) -> Iterator[None]:
        _profiler.install_allocator()
        try:
            yield
        finally:
            _profiler.remove_allocator()


def driver_version() -> str:
    """Of NVIDIA's kernel module; empty where the system does not tell."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return ""
    return next((word for word in line.split() if word[:1].isdigit() and "." in word), "")


class Cuda:
    """Work runs behind the caller: times are device timestamps, memory is the caching allocator's own count."""

    own_clock = True

    def __init__(self, index: int = 0):
        self.place = torch.device("cuda", index)

    def description(self) -> dict[str, str]:
        properties = torch.cuda.get_device_properties(self.place)
        rate = getattr(properties, "clock_rate", 0)  # kHz
        return {
            "name": properties.name, "driver": driver_version(), "cuda": torch.version.cuda or "",
            "clocks": f"at most {rate // 1000} MHz" if rate else "unknown",
        }  # fmt: skip

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.place)

    def live_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.place)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.place)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.place)

    @contextmanager
    def counted_memory(self) -> Iterator[None]:
        """The allocator counts always. Only what this process has on its own device is seen."""
        with torch.cuda.device(self.place):
            yield


def device_of_this_process() -> Any:
    """The GPU of this rank where there is one, unless DS_ACCELERATOR says that training runs on the CPU."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return Cpu()
    return Cuda(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
