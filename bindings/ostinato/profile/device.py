"""What a profile says about the machine that it was measured on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


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
