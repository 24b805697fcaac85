# SPDX-License-Identifier: Apache-2.0
"""The core of ostinato for Python: the commands, with objects instead of files. It does not import torch.

    import ostinato

    profile = ostinato.Profile.from_file("profile.json")          # of `ostinato profile`
    plan = ostinato.plan(profile, devices=4, micro_batches=8, device_memory="40GiB")
    print(plan, plan.makespan, plan.lower_bound)
    plan.save("plan.json"), plan.placement.save("placement.toml")

Times are integers in nanoseconds, amounts of memory integers in bytes; where a keyword takes either, a text
with a unit ("1.5ms", "40GiB") is as good. Every keyword with a default is an option of the command of the
same name, and `ostinato config` explains it.

All functions raise what ostinato.errors has: UsageError for a keyword, InputError for a file (with file and
line), InfeasibleError with a proof. Those that search let other threads run, call `progress(best, bound,
seconds, phase)` up to ten times a second, and after Ctrl-C raise Interrupted with the best so far.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath
from typing import Any, TypeVar

from ostinato import _search
from ostinato.arguments import check_counts, check_flags, check_from_0, check_from_1, core_of, seconds, typed
from ostinato.errors import Interrupted, UsageError
from ostinato.objects import (
    Check, Devices, GraphPartition, GraphRow, Memory, PerDevice, Placement, Plan, Profile, Simulation, SteadyState, Step, Time,
)  # fmt: skip
from ostinato.sizes import MicroBatch, bare_sizes, micro_batches_of

__all__ = [
    "Check", "Devices", "GraphPartition", "GraphRow", "Memory", "MicroBatch", "PerDevice", "Placement", "Plan", "Profile", "Progress",
    "Simulation", "SteadyState", "Step", "Time", "explain", "lower", "pareto", "partition", "partition_graph", "placement", "plan", "search",
    "search_sizes", "simulate", "steady_state", "verify",
]  # fmt: skip

Progress = Callable[[int, int, float, str], object]
Found = TypeVar("Found", Plan, list[Plan], SteadyState, GraphPartition, Simulation)


def placement(
    shape: str,
    *,
    devices: int = 4,
    chunks: int = 2,
    layers: int = 0,
    forward: PerDevice = "1us",
    backward: PerDevice = "2us",
    weight: PerDevice = 0,
    shard_forward: Time = "1us",
    shard_backward: Time = "1us",
    memory: PerDevice = "1MiB",
    shard_memory: Memory | None = None,
    offload: PerDevice = 0,
    workspace: PerDevice = 0,
    capacity: PerDevice = "unlimited",
    static: PerDevice = 0,
    latency: Time = 0,
    bandwidth: float = 0,
    bytes: Memory = 0,
    inference: bool = False,
) -> Placement:
    """A placement of a named shape: "v", "x", "m", "nn", "k", "looped", "wave", ... (`ostinato placement
    --help` draws them).

    Times and memory are for one stage and one micro-batch; a list has one for each device. `weight` above 0
    splits the backward; `offload` above 0 copies what a stage keeps to the host for so long, and back.
    `bandwidth` is in GB/s, 0: bytes are free. `layers` of the model are shared by the stages, so that
    DeepSpeed can run a plan of it.

    >>> placement("v", devices=2, forward=[1000, 3000]).blocks
    ('s0.F', 's1.F', 's1.B', 's0.B')
    """
    given = {
        "forward": forward, "backward": backward, "weight": weight, "shard_forward": shard_forward, "shard_backward": shard_backward,
        "memory": memory, "shard_memory": shard_memory, "offload": offload, "workspace": workspace, "static": static, "capacity": capacity,
        "latency": latency, "bandwidth": bandwidth, "bytes": bytes,
    }  # fmt: skip
    check_counts(devices=devices, chunks=chunks)
    check_from_0(layers=layers)
    check_flags(inference=inference)
    return Placement(_search.shape(shape, devices, chunks, layers, inference, _settings(given)))


def partition(
    profile: Profile,
    *,
    devices: int | Devices,
    micro_batches: int = 0,
    chunks: int = 1,
    layout: str = "looped",
    stages: str = "chain",
    device_memory: Memory = "unlimited",
    shard: str = "",
    recompute: str = "never",
    inference: bool = False,
    split_backward: bool = False,
    allow_incomplete: bool = False,
) -> Placement:
    """Cuts the model into stages so that the busiest device is as little busy as possible and the memory
    suffices.

    `micro_batches` of a step bound what is in flight; 0: as many as there are stages. `chunks` stages a
    device, laid out "looped" or as a "wave". `stages`: runs of the "chain", or connected sets of the "graph".
    `shard`: layers that each device holds in part, with commas. `recompute`: "never"; "needed": stages that
    do not fit otherwise; "partly": as few of their layers as it takes, as a separate stage; "always". The
    result's `report` is what `ostinato partition --json` prints. Raises InfeasibleError where no partition
    fits.
    """
    options = {"chunks": chunks, "layout": layout, "stages": stages, "shard": shard, "recompute": recompute, "inference": inference,
               "split_backward": split_backward, "allow_incomplete": allow_incomplete}  # fmt: skip
    check_counts(micro_batches=micro_batches)
    core, report = _search.partition(
        core_of(profile, Profile), _devices(devices, device_memory)._core, micro_batches, _settings(options)
    )
    return Placement(core, json.loads(report))


def search(
    placement: Placement,
    *,
    micro_batches: int,
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    effort: int = 100,
    method: str = "auto",
    robust: float = 0,
    progress: Progress | None = None,
) -> Plan:
    """Searches the schedule of a placement: repeating part, warm-up and cool-down together, with proven
    bounds.

    `objective`: "makespan", "span" or "latency". `time_limit`: seconds until the best so far is taken; 0:
    none. `threads`: 0 is all; the plan does not depend on it. `effort`: work of a search that does not prove
    its plan, in percent of the usual. `method`: a named schedule instead of a search. `robust`: of plans that
    are as short, the one that times which vary by up to this share stretch the least.
    """
    options = {
        "objective": objective,
        "time_limit": time_limit,
        "threads": threads,
        "seed": seed,
        "effort": effort,
        "method": method,
        "robust": robust,
    }
    check_from_1(micro_batches=micro_batches)
    core, interrupted = _search.search(
        core_of(placement, Placement), micro_batches, _settings(options), progress
    )
    return _unless(interrupted, Plan(core))


def search_sizes(
    placement: Placement,
    sizes: Sequence[MicroBatch] | str | PathLike[str],
    *,
    size: int = 1,
    effort: int = 100,
    keep_order: bool = False,
    time_limit: float = 10,
    seed: int = 0,
) -> Plan:
    """A plan for one step of unequal micro-batches; their entry order is searched, too. Never worse than 1F1B
    in the order given or in sorted orders; `lower_bound` is of these sizes. `effort`: percent of the usual
    work, which takes about 15 ms: cheap enough for every step. `keep_order`: every backward, and each
    forward that computes losses, runs in the order given on its device, so that gradients are added as in
    1F1B.

    `sizes`: of each micro-batch, and `size`: of the one that the placement describes; times, memory and bytes
    grow in proportion. A micro-batch may give blocks their own times (ns) and memory (bytes). Or a file
    (`ostinato-sizes/1`), which has all of it.

    >>> p = placement("v", devices=2, forward=100, backward=200)
    >>> plan = search_sizes(p, [10, 40, 20, 30], size=10)
    >>> plan.makespan, plan.micro_batches, bool(verify(plan))
    (3600, 4, True)
    """
    check_flags(keep_order=keep_order)
    batches = micro_batches_of(placement, sizes, size)
    settings = _settings({"time_limit": time_limit, "seed": seed, "effort": effort})
    core, interrupted = _search.search_sizes(core_of(placement, Placement), batches, settings, keep_order)
    return _unless(interrupted, Plan(core))


def pareto(
    placement: Placement,
    *,
    micro_batches: int,
    points: int = 24,
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    effort: int = 100,
    progress: Progress | None = None,
) -> list[Plan]:
    """The curve of the objective over memory, from the most memory to the least that any schedule was found
    for; at most `points` plans.

    >>> curve = pareto(placement("v", devices=2, memory=1), micro_batches=4)
    >>> [(plan.facts["capacity"]["memory"], plan.makespan) for plan in curve]
    [(2, 15000), (1, 24000)]
    """
    options = {
        "objective": objective,
        "time_limit": time_limit,
        "threads": threads,
        "seed": seed,
        "effort": effort,
        "points": points,
    }
    check_from_1(micro_batches=micro_batches)
    cores, interrupted = _search.pareto(
        core_of(placement, Placement), micro_batches, _settings(options), progress
    )
    return _unless(interrupted, [Plan(core) for core in cores])


def steady_state(placement: Placement, *, time_limit: float = 10) -> SteadyState:
    """The best rate found of a placement that goes on for ever, and the least memory at that rate:
    `search --steady-state`.

    `time_limit`: seconds until the best so far is taken; 0: none. Raises InfeasibleError where nothing fits
    for ever, UndecidedError where none was found in the time. The bounds are P1 to P3 of docs/bounds.md.

    >>> found = steady_state(placement("v", devices=4, forward=100, backward=200, memory=1))
    >>> found.period, found.unroll, found.period_proved, found.peak_memory
    (300, 1, True, (4, 3, 2, 1))
    """
    text, interrupted = _search.steady_state(core_of(placement, Placement), seconds(time_limit))
    told = json.loads(text)
    peaks = told.pop("peak_memory")
    found = SteadyState(
        **{**told, "left_behind": tuple(told.get("left_behind", ())), "peak_memory": peaks and tuple(peaks)}
    )
    return _unless(interrupted, found)


def partition_graph(
    graph: Profile | str | PathLike[str],
    *,
    devices: int | Devices | str | PathLike[str],
    device_memory: Memory = "unlimited",
    strategy: str = "best",
    schedule: str = "pct",
    seed: int = 0,
    runs: int = 0,
    time_limit: float = 0,
    published_program: bool = False,
    inference: bool = False,
    allow_incomplete: bool = False,
) -> GraphPartition:
    """Assigns the vertices of an operator graph to devices of different kind, speed and memory, and simulates
    one iteration.

    `graph` and `devices` are CSV files, as docs/partition.md has them. Or `graph` is a profile, whose layers'
    forwards and backwards are the vertices (`inference`: the forwards alone), and `devices` are as for
    `partition()`. `strategy`: "hash", "batch-split", "critical-path", "mite", "dfs", "heft", or "best" of
    these, improved; `schedule`: "fifo", "pct" or "msr", for all but the last two. `runs`: searches of "best"
    side by side (0: 2), else seeds (0: 1). `time_limit`: seconds of "best", and of proving a bound; 0: none.

    Raises InfeasibleError where every assignment was tried, InputError where a file is wrong or none was
    found.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> graph, devices = Path(mkdtemp(), "graph.csv"), Path(mkdtemp(), "devices.csv")
    >>> head = "id,successors,predecessors,same device,tensor size,operations,memory,device kind"
    >>> _ = graph.write_text("\\n".join([head, "1,2;3,,,10,100,1,NO", "2,,,,10,100,1,NO", "3,,,,10,400,1,NO"]))
    >>> _ = devices.write_text("\\n".join(["id,memory,operations per time unit,rates,kind", "0,9999,100,20,CPU", "1,9999,100,,CPU"]))
    >>> found = partition_graph(graph, devices=devices)
    >>> found.makespan, found.lower_bound, [row.start for row in found.rows]
    (5.0, 5.0, [0.0, 1.5, 1.0])
    """
    check_from_0(63, seed=seed)
    check_from_0(runs=runs)
    check_flags(inference=inference, allow_incomplete=allow_incomplete, published_program=published_program)
    request = _search.GraphRequest(strategy, schedule, seed, runs, seconds(time_limit), published_program)
    if isinstance(graph, Profile):
        if isinstance(devices, str | PathLike):
            raise UsageError(
                "devices for a profile must be a number or Devices: Devices.from_file() reads a device file"
            )
        where = _devices(devices, device_memory)
        found = _search.partition_layers(graph._core, where._core, inference, allow_incomplete, request)
    else:
        if not isinstance(devices, str | PathLike):
            raise UsageError(
                "devices for a graph must be a CSV file with their speeds and the rates between them"
            )
        if device_memory != "unlimited" or inference or allow_incomplete:
            raise UsageError(
                "device_memory, inference and allow_incomplete are for a Profile, not for a graph"
            )
        found = _search.partition_graph(fspath(graph), fspath(devices), request)
    report, text, told, interrupted = found
    return _unless(interrupted, GraphPartition(text, json.loads(report), told))


def plan(
    profile: Profile | Sequence[Profile],
    *,
    devices: int | Devices,
    micro_batches: int = 0,
    sizes: Sequence[int] | str | PathLike[str] | None = None,
    size: int = 0,
    keep_order: bool = False,
    device_memory: Memory = "unlimited",
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    effort: int = 100,
    method: str = "auto",
    robust: float = 0,
    max_chunks: int = 64,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    exact_losses: bool = False,
    fixed_ends: bool = False,
    replicas: int | str = 1,
    slices: int | str = "",
    fewer_devices: bool = False,
    all_devices: bool = False,
    shard: str = "",
    inference: bool = False,
    split_backward: bool = False,
    allow_incomplete: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """From a profile to a plan: partitions the model in every way that may pay, searches what the bounds
    leave, and takes the shortest that fits the memory. `str()` of the result is the table of candidates,
    `report` all of them as data, `placement` the one chosen.

    `without` and `only` (names, or a text with commas) restrict what is tried beside whole backwards on one
    stage per device: "chunks", "split", "shards", "recompute", "branches", "moves", "lanes", "fewer-devices".
    `exact_losses` leaves out what changes losses by rounding: split backwards, shards. `fixed_ends`: inputs
    on the first device, the loss on the last one, as in 1F1B, which leaves out waves. What the profile's
    "restrictions" forbid is not tried either; `report["not_tried"]` says what was left out, and why.
    `replicas`: this many pipelines beside each other, each with its share of `devices` and `micro_batches`;
    "auto": the number that makes a step shortest. The plan is of one of them, and `report["degrees"]` has them all. `slices`: `devices` are ranks,
    this many of which hold slices of each layer (tensor parallelism), as the profile of the same number says;
    "auto", and the default of several profiles: the one with the shortest step.

    `sizes`: of the micro-batches of one step, as for `search_sizes()`, but without figures of blocks; `size`:
    of the micro-batch that was profiled, 0: what the profile says ("tokens"). The placement is then, of those
    tried for equal micro-batches, the one whose best order found for these is shortest.
    """
    options = {
        "objective": objective, "time_limit": time_limit, "threads": threads, "seed": seed, "effort": effort, "method": method, "robust": robust,
        "max_chunks": max_chunks,
        "without": _names(without), "only": _names(only), "exact_losses": exact_losses, "fixed_ends": fixed_ends, "replicas": replicas, "slices": slices,
        "fewer_devices": fewer_devices, "all_devices": all_devices, "shard": shard, "inference": inference,
        "split_backward": split_backward, "allow_incomplete": allow_incomplete,
    }  # fmt: skip
    check_counts(micro_batches=micro_batches)
    check_flags(keep_order=keep_order)
    where = _devices(devices, device_memory)
    several = profile if isinstance(profile, Iterable) and not isinstance(profile, str) else [profile]
    profiles = [core_of(one, Profile) for one in several]
    if not profiles:
        raise UsageError("plan() needs a profile")
    if sizes is None and (size or keep_order):
        raise UsageError("size and keep_order need sizes")
    if sizes is None:
        found = _search.plan_profile(profiles, where._core, micro_batches, _settings(options), progress)
    else:
        step, of = bare_sizes(sizes, size, micro_batches)
        found = _search.plan_sizes(profiles, where._core, step, of, _settings(options), keep_order, progress)
    core, report, told, interrupted = found
    return _unless(interrupted, Plan(core, json.loads(report), told))


def verify(plan: Plan, *, profile: Profile | None = None, devices: int | Devices | None = None) -> Check:
    """Checks every step, figure, bound and claim with code that shares nothing with the search.

    With `profile`, also what `plan()` claims of all other placements of its layers; `devices`: as given to
    `plan()`, where they are not all alike.

    >>> bool(verify(search(placement("m", devices=2), micro_batches=4)))
    True
    """
    passed, failures = _search.verify(core_of(plan, Plan))
    if profile is not None:
        others = _search.verify_others(
            core_of(plan, Plan),
            core_of(profile, Profile),
            None if devices is None else _devices(devices, "unlimited")._core,
        )
        passed, failures = passed + others[0], failures + others[1]
    return Check(tuple(passed), tuple(failures))


def simulate(
    plan: Plan,
    *,
    sizes: Sequence[MicroBatch] | str | PathLike[str] | None = None,
    size: int = 1,
    jitter: float = 0,
    unequal: float = 0,
    transfer_factor: float = 1,
    runs: int = 100,
    seed: int = 0,
) -> Simulation:
    """Replays the plan's order on each device with times that vary by up to the share `jitter`, all blocks of
    a micro-batch alike by up to `unequal`, and transfers that take `transfer_factor` times as long. The same
    seed gives the same makespans.

    `sizes` and `size`: other micro-batches than the plan's, as for `search_sizes()`, as many as it has.
    Raises InputError where a device has not the memory for them in this order.

    >>> simulate(search(placement("v", devices=2), micro_batches=4)).at(100)
    15000
    """
    options = {
        "jitter": jitter,
        "unequal": unequal,
        "transfer_factor": transfer_factor,
        "runs": runs,
        "seed": seed,
    }
    if sizes is None and size != 1:
        raise UsageError("size needs sizes")
    batches = [] if sizes is None else micro_batches_of(plan.placement, sizes, size)
    if sizes is not None and not batches:
        raise UsageError("sizes are empty; a step has at least one micro-batch")
    makespans, interrupted = _search.simulate(core_of(plan, Plan), batches, _settings(options))
    return _unless(interrupted, Simulation(tuple(makespans)))


def explain(plan: Plan) -> list[str]:
    """What limits the makespan, in sentences."""
    return _search.explain(core_of(plan, Plan))


def lower(plan: Plan, *, transfers: bool = True) -> list[str]:
    """What each rank runs, a row a rank, as torch.distributed.pipelining reads it; shown free of deadlock.

    >>> lower(search(placement("v", devices=2), micro_batches=1), transfers=False)
    ['0F0,0B0', '1F0,1B0']
    """
    check_flags(transfers=transfers)
    return _search.lower(core_of(plan, Plan), transfers)


def _names(given: Sequence[str]) -> str | list[str]:
    return given if isinstance(given, str) else list(given)


def _settings(given: dict[str, Any]) -> dict[str, str]:
    return {key: typed(key, value) for key, value in given.items() if value is not None}


def _devices(devices: int | Devices, memory: Memory) -> Devices:
    if isinstance(devices, str | PathLike):
        core_of(devices, Devices)
    if not isinstance(devices, Devices):
        return Devices(devices, memory)
    if memory != "unlimited":
        raise UsageError("device_memory needs a number of devices; Devices have their own")
    return devices


def _unless(interrupted: bool, found: Found) -> Found:
    if interrupted:
        raise Interrupted(found)
    return found
