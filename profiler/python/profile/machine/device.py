# SPDX-License-Identifier: Apache-2.0
"""The device that a model is profiled on: where its tensors lie, its memory, its clock, and what a profile
says about it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import thread_time_ns
from typing import Any

import torch

from ostinato import _profiler
from ostinato.errors import counted


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


def memory_available() -> int:
    """Bytes, as /proc/meminfo estimates them; 0 where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def cpu_clocks() -> str:
    """Frequency now, its governor where the system tells, and threads of an operator."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    parts = [f"{cpu_fields()['cpu MHz']} MHz" if "cpu MHz" in cpu_fields() else "unknown frequency"]
    try:
        parts.append(f"governor {governor.read_text().strip()}")
    except OSError:
        parts.append("governor unknown")
    parts.append(counted(torch.get_num_threads(), "thread"))
    return ", ".join(parts)


def usable(total: int) -> int:
    """Bytes of an accelerator's memory that tensors can have, 95 %: its context, buffers for communication,
    libraries' workspaces and gaps between blocks take the rest. What a plan counts is none of these."""
    return total * 95 // 100


class Cpu:
    """Work is done when a call returns: its time is the steady clock's, its memory the counting allocator's."""

    place = torch.device("cpu")
    own_clock = False  # whether a DeviceTimer tells its operators' times (device/device_timer.h)
    kind = "cpu"  # as a placement's devices name it, unless the user gives another name

    def identity(self) -> str:
        """Tells apart the devices of a host that ranks can have for themselves; empty: they share it."""
        return ""

    def active(self) -> AbstractContextManager:
        """While it lasts this is the device that streams and events belong to."""
        return nullcontext()

    def description(self) -> dict[str, str]:
        """The profile's `device`, but for its kind and torch."""
        return {"name": cpu_name(), "driver": "", "cuda": torch.version.cuda or "", "clocks": cpu_clocks()}

    now = staticmethod(_profiler.now)  # ns

    def mark(self) -> Any:
        """A moment of the device's clock; between() tells the nanoseconds from one to the next."""
        return self.now()

    def between(self, start: Any, end: Any) -> int:
        return end - start

    def worked(self) -> int:
        """Nanoseconds that this thread ran, or waited for a core. Waits for anything else do not count."""
        return thread_time_ns() + waited_for_a_core()

    def synchronize(self) -> None:
        """Nothing is waited for."""

    def live_bytes(self) -> int:
        return _profiler.live_bytes()

    def peak_bytes(self) -> int:
        return _profiler.peak_bytes()

    def reset_peak(self) -> None:
        _profiler.reset_peak()

    def usable_bytes(self) -> int:
        """Of the machine."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def free_bytes(self) -> int:
        """That this process could have. Where the system does not tell, as much as there could be."""
        return memory_available() or 1 << 62

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


def clocks_of_gpu(uuid: str) -> str:
    """As nvidia-smi tells them; empty where it does not."""
    fields = "clocks.sm,clocks.max.sm,clocks.mem"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id=GPU-{uuid}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        now, most, memory = (word.strip() for word in done.stdout.strip().split(","))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return f"{now} MHz of at most {most} MHz, memory {memory} MHz"


class Accelerator:
    """Any device whose module of torch (torch.cuda, torch.xpu, ...) has events, and tells what its allocator has
    handed out. Work runs behind the caller, and events on its stream time it: what is launched on other streams
    counts where the caller's stream waits for it."""

    own_clock = False

    def __init__(self, place: torch.device):
        self.place = place

    @property
    def _torch(self) -> Any:
        return torch.get_device_module(self.place)

    @property
    def kind(self) -> str:
        """Its model, where torch knows it."""
        return getattr(self._torch, "get_device_name", lambda place: place.type)(self.place)

    def description(self) -> dict[str, str]:
        return {"name": self.kind, "driver": "", "cuda": "", "clocks": "unknown"}

    def active(self) -> AbstractContextManager:
        return self._torch.device(self.place)

    def now(self) -> int:
        """Nanoseconds, when all that the device was given is done."""
        self.synchronize()
        return _profiler.now()

    def event(self) -> Any:
        """One that tells its time."""
        return self._torch.Event(enable_timing=True)

    def mark(self) -> Any:
        event = self.event()
        event.record(self._torch.current_stream(self.place))
        return event

    def between(self, start: Any, end: Any) -> int:
        """Waits for both."""
        start.synchronize()
        end.synchronize()
        return round(1e6 * start.elapsed_time(end))

    def worked(self) -> int:
        """Of the host's thread."""
        return thread_time_ns()

    def synchronize(self) -> None:
        self._torch.synchronize(self.place)

    def live_bytes(self) -> int:
        return self._torch.memory_allocated(self.place)

    def peak_bytes(self) -> int:
        return self._torch.max_memory_allocated(self.place)

    def reset_peak(self) -> None:
        self._torch.reset_peak_memory_stats(self.place)

    @contextmanager
    def counted_memory(self) -> Iterator[None]:
        """The allocator always counts. It sees only this process's memory on its own device."""
        with self.active():
            yield


class Cuda(Accelerator):
    """One whose operators CUPTI or events time."""

    own_clock = True

    def __init__(self, index: int = 0):
        super().__init__(torch.device("cuda", index))

    def identity(self) -> str:
        """By its UUID: two ranks may each call their GPU number 0, where CUDA_VISIBLE_DEVICES shows each
        another one."""
        return str(getattr(torch.cuda.get_device_properties(self.place), "uuid", self.place.index))

    def description(self) -> dict[str, str]:
        return {
            "name": self.kind, "driver": driver_version(), "cuda": torch.version.cuda or "",
            "clocks": clocks_of_gpu(self.identity()) or "unknown",
        }  # fmt: skip

    def usable_bytes(self) -> int:
        return usable(torch.cuda.get_device_properties(self.place).total_memory)

    def free_bytes(self) -> int:
        """The driver's free memory, plus what the allocator holds unused."""
        cached = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(self.place)
        return torch.cuda.mem_get_info(self.place)[0] + cached


class UndisturbedCpu(Cpu):
    """A processor whose clock stops while this thread waits for a core, as if it had one to itself: for ranks
    that share cores, where a plan counts the waiting. Linux tells how long; elsewhere it is Cpu."""

    def now(self) -> int:
        """The clock is read while the thread does not wait: else a time might come out negative."""
        before, clock = -1, 0
        while (waited := waited_for_a_core()) != before:
            before, clock = waited, _profiler.now()
        return clock - waited

    def worked(self) -> int:
        return thread_time_ns()


def waited_for_a_core() -> int:
    """Nanoseconds that this thread could have run since it began, and did not; 0 where the system does not
    tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def device_at(place: torch.device) -> Cpu | Accelerator:
    """For what an engine runs there."""
    if place.type == "cpu":
        return Cpu()
    return Cuda(place.index) if place.type == "cuda" else Accelerator(place)


def device_of_this_process() -> Any:
    """The GPU of this rank where there is one, unless DS_ACCELERATOR says that training runs on the CPU. A
    launcher that shows each rank its own GPU alone (CUDA_VISIBLE_DEVICES) makes it number 0 of every rank,
    whatever the rank's number on the host is.
    """
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return Cpu()
    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
    return Cuda(int(local) % torch.cuda.device_count())
