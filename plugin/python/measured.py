# SPDX-License-Identifier: Apache-2.0
"""Turns a run's block times into costs of layers and speeds of devices, so that `ostinato plan` can plan again.

    found = Measured.of(read_traces(Path("out/trace")))
    found.devices                           # {0: 1.0, 1: 1.5}: device 1 takes 1.5 times as long as planned, relative to the median device
    profile, devices = replanned(found, placement, profile)     # texts of an ostinato-profile/1 and an ostinato-devices/1

A stage that takes longer than planned has more expensive layers or a slower device, and a run cannot tell which.
Here a device counts as slower if its blocks together differ from the median device's by more than SAME; the rest
is attributed to the layers. What a block costs beside its layers does not change. With the new costs, every
stage of the old plan takes as long as in the run, up to rounding; of sharded stages and of layers that run in two
directions that is an estimate.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ostinato.errors import Error
from ostinato.trace import RankTrace, TracedInstruction

SAME = 0.05  # relative; a device this close to the median is not called slow
CHANGED = 0.15  # relative; blocks or a step that differ more are reported
TIMES = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
HALVES = ("backward_input", "backward_weight")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# In a profile's "rank": what such a block costs beside its layers (block_overhead() in search/partition).
BESIDE = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


class MeasuredBlock(NamedTuple):
    """What a device runs once per micro-batch."""

    device: int
    stage: int
    action: str


@dataclass(frozen=True)
class Measured:
    """`planned` and `measured`: nanoseconds. `overall`: how many times as long as planned the median device's
    blocks took (of two, the faster one's); 0: not known, as no block took any time. `devices`: how many times as
    long as the median's; 1.0 within SAME, or not known. `speeds`: of the devices that it was planned for, where
    they differ: which device is the median one depends on what is left of them."""

    planned: dict[MeasuredBlock, float]
    measured: dict[MeasuredBlock, float]
    overall: float
    devices: dict[int, float]
    speeds: Sequence[float] = ()

    @classmethod
    def of(cls, ranks: list[RankTrace], speeds: Sequence[float] = ()) -> Measured:
        return cls.of_rows((row for trace in ranks for row in block_rows(trace)), speeds)

    @classmethod
    def of_rows(
        cls, rows: Iterable[tuple[MeasuredBlock, float, float]], speeds: Sequence[float] = ()
    ) -> Measured:
        """From (block, planned, measured) of every rank. Of several pipelines the slowest counts."""
        planned, took = dict[MeasuredBlock, float](), dict[MeasuredBlock, float]()
        for block, expected, measured in rows:
            planned[block], took[block] = expected, max(measured, took.get(block, 0.0))
        by_device = groupby(sorted(planned), key=lambda block: block.device)
        ratios = {device: _ratio(list(blocks), planned, took) for device, blocks in by_device}
        overall = ratios[_usual(ratios, speeds)] if any(ratios.values()) else 0.0
        beside = {device: ratio / overall if ratio else 1.0 for device, ratio in ratios.items()}
        return cls(
            planned,
            took,
            overall,
            {device: by if abs(by - 1) > SAME else 1.0 for device, by in beside.items()},
            speeds,
        )

    def conclusions(self, predicted: float, pipeline: float) -> Iterator[str]:
        """What the run shows about the plan, one line each. Nanoseconds of the pipeline's part of a step:
        predicted, and measured."""
        if not self.overall:
            return
        if abs(self.overall - 1) > CHANGED:
            yield (
                f"All blocks took about {self.overall:.2f} times as long as planned: the machine was {'slower' if self.overall > 1 else 'faster'} than "
                "when it was profiled (its clock, or other work on it). The same plan is expected to stay the best."
                if self._alike
                else f"Blocks took {self.overall:.2f} times as long as planned {self.on_usual_device}: profile again, or plan with the measured times (--measured)."
            )
        for device, by in sorted(self.devices.items()):
            if by > 1 + CHANGED:
                yield (
                    f"Device {device} took {by:.2f} times as long as planned, compared with {self.usual_device}: if this persists, plan with the measured "
                    "times (--measured), which moves layers off it."
                )
        took = max(self.overall * by for by in self.devices.values())
        if pipeline > predicted * max(1.0, took) * (1 + CHANGED):
            yield (
                f"The step took {pipeline / predicted:.2f} times as long as planned, but its blocks at most {took:.2f} times: ranks waited for "
                "transfers, or for a late rank."
            )

    @property
    def usual_device(self) -> str:
        """In words, what `devices` are relative to."""
        return "the other device" if len(self.devices) == 2 else "the median device"

    @property
    def on_usual_device(self) -> str:
        """In words, where blocks took `overall` times as long as planned."""
        return "on the faster of the two devices" if len(self.devices) == 2 else f"on {self.usual_device}"

    @property
    def _alike(self) -> bool:
        """Whether all blocks took about as many times as long as planned."""
        times = [self.measured[block] / planned for block, planned in self.planned.items() if planned]
        return all(abs(by / self.overall - 1) <= CHANGED for by in times)


def times_in(found: Measured, placement: dict[str, Any]) -> dict[str, int]:
    """Nanoseconds that blocks of the placement that ran took, by their names: the plan that ran can be replayed with
    them. `placement`: as a table. Blocks that were not measured are left out."""
    stages, took = [stage["name"] for stage in placement["stages"]], defaultdict[Any, float](float)
    for block, time in found.measured.items():
        key = stages[block.stage], block.action
        took[key] = max(took[key], time)  # of a sharded stage the slowest device counts
    keys = {
        row["name"]: (row.get("stage", row["name"]), TIMES.get(row.get("kind")))
        for row in placement["blocks"]
    }
    return {name: round(took[key]) for name, key in keys.items() if took.get(key)}


def block_rows(trace: RankTrace) -> Iterator[tuple[MeasuredBlock, float, float]]:
    """(block, planned, measured): the mean of its micro-batches, measured the median of the last steps."""
    steady = {MeasuredBlock(trace.device, row.stage, row.action): row.median for row in trace.blocks}
    of_last = defaultdict[MeasuredBlock, list[TracedInstruction]](list)
    for i in trace.instructions:
        if i.is_compute:
            of_last[MeasuredBlock(trace.device, i.stage, i.action)].append(i)
    for block, ran in of_last.items():
        yield (
            block,
            statistics.fmean(i.planned for i in ran),
            steady.get(block, statistics.fmean(i.measured for i in ran)),
        )


def _usual(ratios: dict[int, float], speeds: Sequence[float]) -> int:
    """The median device by what its blocks took, and not by what was expected of them; of those within SAME of it the
    one that was planned fastest."""
    speed_of = {device: speeds[device] if speeds else 1.0 for device in ratios}
    slowness = {device: ratio / speed_of[device] for device, ratio in ratios.items() if ratio}
    median = statistics.median_low(slowness.values())
    off = {device: abs(by / median - 1) for device, by in slowness.items()}
    return max((d for d in off if off[d] <= SAME), key=lambda d: (speed_of[d], -off[d]))


def _ratio(
    blocks: list[MeasuredBlock], planned: dict[MeasuredBlock, float], took: dict[MeasuredBlock, float]
) -> float:
    of_plan = sum(planned[block] for block in blocks)
    return sum(took[block] for block in blocks) / of_plan if of_plan else 1.0


def replanned(found: Measured, placement: dict[str, Any], profile: dict[str, Any]) -> tuple[str, str]:
    """Texts of a profile and of a device file. `placement`, `profile`: the files of the plan that ran, as
    tables. Raises Error where speeds of devices cannot be derived."""
    if placement.get("hosts"):
        raise Error(
            "the placement has [[hosts]]: ranks share cores, so a rank's times do not show the speed of its device"
        )
    if not found.speeds and len({device.get("kind") for device in placement["devices"]}) > 1:
        raise Error(
            "the placement has devices of several kinds, each with a profile or a speed: measure each kind again"
        )
    ran = {key: _by_layer(found, placement, action, profile) for key, action in TIMES.items()}
    twice = {layer for row in placement["stages"] if row.get("recompute") for layer in _layers_of(row)}
    rows = [
        {"recompute": row["forward"]["median"]} | row if at in twice else row
        for at, row in enumerate(profile["layers"])
    ]
    factors = [
        _factors(row, {key: ran[key][at] for key in TIMES}, at in twice) for at, row in enumerate(rows)
    ]
    rows = [_scaled(row, by) for row, by in zip(rows, factors, strict=True)]
    sizes = [
        row
        | {
            key: [round(time * by[key]) for time, by in zip(row[key], factors, strict=True)]
            for key in ("forward", "backward")
        }
        for row in profile.get("sizes", [])
    ]
    made = profile | {"layers": rows, "operators": []} | ({"sizes": sizes} if sizes else {})
    unit = UNITS[placement.get("memory_unit", "MiB")]
    memory = [round(device["memory"] * unit) if "memory" in device else 0 for device in placement["devices"]]
    return json.dumps(made, indent=1) + "\n", _device_file(found, memory)


def _by_layer(
    found: Measured, placement: dict[str, Any], action: str, profile: dict[str, Any]
) -> list[float]:
    """By layer, how many times as long as profiled it takes; 0.0: not known."""
    layers, rank = len(profile["layers"]), profile.get("rank", {})
    of_layers: list[list[float]] = [[] for _ in range(layers)]
    for stage, row in enumerate(placement["stages"]):
        own = _layers_of(row)
        if max(own) >= layers:
            raise Error(
                f'stage "{row["name"]}" has layers up to {max(own)}, but the profile has {layers}: the plan was not made from this profile'
            )
        beside = 0 if _on_lane(placement, row["name"]) else rank.get(BESIDE[action], 0)
        if action == "F":  # the first layer's stage reads inputs, the last one's labels
            beside += rank.get("read", 0) * len({0, layers - 1}.intersection(own))
        of_stage = [
            max(1.0, found.measured[block] - beside) / (planned - beside) / found.devices[block.device]
            for block, planned in found.planned.items()
            if (block.stage, block.action) == (stage, action) and found.measured[block] and planned > beside
        ]
        for layer in own:
            of_layers[layer] += of_stage
    return [statistics.fmean(values) if values else 0.0 for values in of_layers]


def _layers_of(stage: dict[str, Any]) -> list[int]:
    ranges = stage["layers"] if isinstance(stage["layers"][0], list) else [stage["layers"]]
    return [layer for begin, end in ranges for layer in range(begin, end)]


def _on_lane(placement: dict[str, Any], stage: str) -> bool:
    """Whether no device computes the stage."""
    lanes = [
        row.get("lane", "compute")
        for row in placement["blocks"]
        if row.get("stage", row["name"]) == stage and row.get("kind") in TIMES
    ]
    return all("compute" not in ([lane] if isinstance(lane, str) else lane) for lane in lanes)


def _factors(row: dict[str, Any], ran: dict[str, float], twice: bool) -> dict[str, float]:
    """Of a layer, by what takes time. `ran`: by block that ran; 0.0: none did; `twice`: its stage recomputes.
    The halves go on adding up to the whole, as the planner has them (add_up_to_whole() in search/profile)."""
    whole, halves = row["backward"]["median"], {key: row[key]["median"] for key in HALVES}
    both = sum(halves.values())
    stretched = max(1.0, whole / both) if both else 1.0
    of_halves = {key: ran[key] or ran["backward"] or 1.0 for key in HALVES}
    mean = sum(of_halves[key] * time for key, time in halves.items()) / both if both else of_halves[HALVES[0]]
    forward = ran["forward"] or 1.0
    again = (ran["backward"] or ran["backward_input"]) if twice else forward
    return {"forward": forward, "backward": ran["backward"] or mean, "recompute": again or forward} | {
        key: by * stretched for key, by in of_halves.items()
    }


def _scaled(row: dict[str, Any], factors: dict[str, float]) -> dict[str, Any]:
    def scaled(times: Any, by: float) -> Any:
        if not isinstance(times, dict):
            return round(times * by)
        return {name: time if name == "repeats" else round(time * by) for name, time in times.items()}

    return row | {"same_as": -1} | {key: scaled(row[key], by) for key, by in factors.items() if key in row}


def _device_file(found: Measured, memory: list[int]) -> str:
    """Equal devices in a row make one node; links come from the profile. `memory`: bytes; 0: unlimited."""
    text = ['format = "ostinato-devices/1"\nname = "measured"\nmemory_unit = "B"\n']
    now = [
        (found.speeds[index] if found.speeds else 1.0) / found.devices.get(index, 1.0)
        for index in range(len(memory))
    ]
    described = [(round(speed, 3), size) for speed, size in zip(now, memory, strict=True)]
    kinds = {what: f"speed {what[0]:g}" + (f", {what[1]} B" if what[1] else "") for what in described}
    for (speed, size), name in kinds.items():
        text.append(
            f"[[kinds]]\nname = {json.dumps(name)}\nspeed = {speed}\n"
            + (f"memory = {size}\n" if size else "")
        )
    for what, alike in groupby(described):
        text.append(f"[[nodes]]\nkind = {json.dumps(kinds[what])}\ndevices = {len(list(alike))}\n")
    return "\n".join(text)


def speeds_in(devices: str) -> list[float]:
    """The speed of each device in a text from replanned(). Raises Error where it is another one."""
    try:
        table = tomllib.loads(devices)
        of_kind = {kind["name"]: kind["speed"] for kind in table["kinds"]}
        return [of_kind[node["kind"]] for node in table["nodes"] for _ in range(node["devices"])]
    except (ValueError, LookupError, TypeError) as error:
        raise Error(
            f"the speeds of the devices that the plan was made for cannot be read: {error!r}"
        ) from None
