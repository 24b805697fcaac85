# SPDX-License-Identifier: Apache-2.0
"""Profiles of chains of layers, written without measuring."""

from pathlib import Path

from ostinato import _profiler


def write_profile(
    path: Path,
    forward: list[int],
    device: str = "cpu",
    kept: int = 1024,
    shardable: tuple[int, ...] = (),
    slices: int = 1,
) -> Path:
    """`forward`: microseconds of each layer; a backward takes twice as long, and `kept` bytes are kept for
    it."""
    profile = _profiler.Profile()
    profile.model, profile.model_sha256, profile.timer, profile.micro_batch_size = "chain", "0" * 64, "cpu", 1
    profile.slices = slices
    profile.set_device(name=device, kind=device, driver="", torch="", cuda="", clocks="")
    profile.layers = [
        _row(index, 1000 * time, kept, index in shardable) for index, time in enumerate(forward)
    ]
    profile.completeness.complete = True
    profile.write(str(path))
    return path


def _row(index: int, forward: int, kept: int, shardable: bool):
    row = _profiler.LayerCost()
    row.index, row.name, row.same_as = index, f"{index}:Layer", -1
    row.forward, row.backward = _profiler.spread_of([forward]), _profiler.spread_of([2 * forward])
    row.kept, row.parameters = kept, 1024
    row.input_bytes, row.output_bytes, row.shardable = 64, 64, shardable
    return row
