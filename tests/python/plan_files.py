# SPDX-License-Identifier: Apache-2.0
"""Placement and plan files of chains of stages, written without the search: for tests of what comes after it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def write_chain(
    folder: Path,
    device_of: list[int],
    micro_batches: int,
    in_flight: int | None = None,
    forward: int = 10,
    backward: int = 20,
    split: bool = False,
) -> tuple[str, str]:
    """Stage s runs on device_of[s] and feeds stage s + 1. Backwards go first; at most `in_flight - s`
    micro-batches of stage s are between forward and backward (1F1B for in_flight = stages). Returns the paths
    (plan, placement)."""
    blocks = _blocks(device_of, forward, backward, split)
    schedule = _list_schedule(blocks, micro_batches, in_flight)
    folder.mkdir(parents=True, exist_ok=True)
    placement = folder / "placement.toml"
    placement.write_text(_placement_text(blocks, max(device_of) + 1))
    plan = folder / "plan.json"
    plan.write_text(json.dumps(_plan(blocks, schedule, micro_batches, placement, max(device_of) + 1)))
    return str(plan), str(placement)


def _blocks(device_of, forward, backward, split):
    blocks = []
    last = len(device_of) - 1
    for s, device in enumerate(device_of):
        after = [f"{s - 1}.F"] if s > 0 else []
        blocks.append(
            dict(name=f"{s}.F", stage=str(s), kind="forward", device=device, time=forward, after=after)
        )
    half = "I" if split else "B"
    for s in range(last, -1, -1):
        after = [f"{s}.F"] + ([f"{s + 1}.{half}"] if s < last else [])
        kind = "backward_input" if split else "backward"
        blocks.append(
            dict(name=f"{s}.{half}", stage=str(s), kind=kind, device=device_of[s], time=backward, after=after)
        )
        if split:
            blocks.append(
                dict(
                    name=f"{s}.W",
                    stage=str(s),
                    kind="backward_weight",
                    device=device_of[s],
                    time=backward,
                    after=[f"{s}.I"],
                )
            )
    return blocks


def _list_schedule(blocks, micro_batches, in_flight):
    """{(block, micro-batch): start}: whenever a device is free, it starts the first ready step, backwards
    first."""
    order = [b for b in blocks if b["kind"] != "forward"] + [b for b in blocks if b["kind"] == "forward"]
    start, end, free, now = {}, {}, {}, 0

    def ended(kind, stage):
        return sum(
            end.get((b["name"], m), now + 1) <= now
            for b in blocks
            if b["stage"] == stage and b["kind"].startswith(kind)
            for m in range(micro_batches)
        )

    def admitted(b):
        if b["kind"] != "forward" or in_flight is None:
            return True
        started = sum((b["name"], m) in start for m in range(micro_batches))
        return started - ended("backward", b["stage"]) < max(1, in_flight - int(b["stage"]))

    while len(start) < len(blocks) * micro_batches:
        assert now < 10**7, "the bound on what is in flight holds every step back"
        for device in {b["device"] for b in blocks}:
            ready = (
                (b, m)
                for b in order
                if b["device"] == device and admitted(b)
                for m in range(micro_batches)
                if (b["name"], m) not in start and all(end.get((a, m), now + 1) <= now for a in b["after"])
            )
            step = next(ready, None) if free.get(device, 0) <= now else None
            if step:
                b, m = step
                start[b["name"], m], end[b["name"], m] = now, now + b["time"]
                free[device] = now + b["time"]
        now += 1
    return start


def _placement_text(blocks, devices):
    text = 'format = "ostinato-placement/1"\nname = "chain"\ntime_unit = "ns"\nmemory_unit = "B"\n'
    text += "".join(f'\n[[devices]]\nname = "d{d}"\n' for d in range(devices))
    for b in blocks:
        after = ", ".join(f'"{a}"' for a in b["after"])
        text += (
            f'\n[[blocks]]\nname = "{b["name"]}"\nstage = "{b["stage"]}"\nkind = "{b["kind"]}"\n'
            f"devices = [{b['device']}]\ntime = {b['time']}\nmemory = 0\nafter = [{after}]\n"
        )
    return text


def _plan(blocks, schedule, micro_batches, placement, devices):
    by_name = {b["name"]: b for b in blocks}
    at = {name: (b["time"], [b["device"]]) for name, b in by_name.items()}
    return plan_json("chain", placement.read_bytes(), at, schedule, micro_batches, devices)


def plan_json(name, placement, blocks, schedule, micro_batches, devices):
    """What plan.json holds of a schedule without memory. `placement`: the bytes of its file; `blocks`: by
    name, how long and where each runs; `schedule`: starts by block and micro-batch."""
    ends = {step: at + blocks[step[0]][0] for step, at in schedule.items()}
    steps = sorted(schedule.items(), key=lambda s: (s[1], blocks[s[0][0]][1][0], *s[0]))
    on = [[step for step in schedule if d in blocks[step[0]][1]] for d in range(devices)]
    return {
        "format": "ostinato-plan/1",
        "placement": {"name": name, "sha256": hashlib.sha256(placement).hexdigest()},
        "micro_batches": micro_batches,
        "objective": "makespan",
        "makespan": max(ends.values()),
        "span": max(
            (max(ends[s] for s in ran) - min(schedule[s] for s in ran) for ran in on if ran), default=0
        ),
        "steady_state": {"period": 0, "unroll": 1, "first": 0, "count": 0},
        "lower_bound": {"makespan": 0, "period": 0},
        "optimal": {"makespan": False, "period": False},
        "peak_memory": [0] * devices,
        "search": {"method": "list", "seed": 0, "cut_by_limit": False},
        "schedule": [{"block": b, "micro_batch": m, "start": at} for (b, m), at in steps],
    }
