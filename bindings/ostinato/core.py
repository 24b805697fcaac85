# SPDX-License-Identifier: Apache-2.0
"""The core of ostinato for Python: what the commands do, with objects instead of files. No torch is imported.

    import ostinato

    profile = ostinato.Profile.from_file("profile.json")          # of `ostinato profile`
    plan = ostinato.plan(profile, devices=4, micro_batches=8, device_memory="40GiB")
    print(plan, plan.makespan, plan.lower_bound)
    plan.save("plan.json"), plan.placement.save("placement.toml")

Times are integers in nanoseconds, amounts of memory integers in bytes; where a keyword takes either, a text with a unit ("1.5ms",
"40GiB") is as good. Every keyword with a default is an option of the command of the same name, and `ostinato config` explains it.

All functions raise what ostinato.errors has: UsageError for a keyword, InputError for a file (with file and line), InfeasibleError with
a proof. Those that search let other threads run, call `progress(best, bound, seconds, phase)` up to ten times a second, and after Ctrl-C
raise Interrupted with the best so far.
"""

from __future__ import annotations

import html
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ostinato import _search
from ostinato.errors import Interrupted, UsageError
from ostinato.files import write_text

Progress = Callable[[int, int, float, str], object]
Time = int | str  # nanoseconds, or with a unit
Memory = int | str  # bytes, or with a unit
PerDevice = int | str | Sequence[int | str]  # one for all, or one a device
Found = TypeVar("Found", "Plan", "list[Plan]", "SteadyState", "GraphPartition")


class _Text:
    """What is the content of a file: equal where the bytes are."""

    _core: Any

    @property
    def text(self) -> str:
        """The bytes of the file, as save() writes them."""
        return self._core.text

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the file, beside it first and then in its place."""
        write_text(Path(path), self.text)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Text) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class Placement(_Text):
    """What one micro-batch runs, and on which devices (`ostinato-placement/1`).

    >>> m = placement("m", devices=4, forward="1ms", backward="2ms")
    >>> m.devices
    ('device0', 'device1', 'device2', 'device3')
    >>> Placement.from_text(m.text) == m
    True
    """

    _core: _search.Placement

    def __init__(self, core: _search.Placement, report: dict[str, Any] | None = None):
        self._core = core
        self.report = report or {}  # of partition(): what `ostinato partition --json` prints

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Placement:
        """Raises InputError with file and line."""
        return cls(_search.placement_file(fspath(path)))

    @classmethod
    def from_text(cls, text: str, name: str = "placement") -> Placement:
        """`name` stands in messages for the file."""
        return cls(_search.placement(text, name))

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def sha256(self) -> str:
        """Of the file: a plan names it."""
        return self._core.sha256

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._core.devices)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Of one micro-batch."""
        return tuple(self._core.blocks)

    def to_dict(self) -> dict[str, Any]:
        """As docs/formats.md has it."""
        return tomllib.loads(self.text)

    def __repr__(self) -> str:
        return f"<Placement {self.name}: {len(self.blocks)} blocks on {len(self.devices)} devices>"


class Step(NamedTuple):
    """A block of one micro-batch in a plan."""

    block: str
    stage: str
    kind: str  # "forward", "backward", "backward_input", "backward_weight" or "other"
    devices: tuple[str, ...]
    micro_batch: int
    start: int  # ns
    end: int  # ns


class Plan(_Text):
    """A schedule of all micro-batches of a step, with what is proved of it (`ostinato-plan/1`).

    >>> plan = search(placement("v", devices=2, forward="1ms", backward="2ms"), micro_batches=2)
    >>> plan.makespan, plan.lower_bound, plan.optimal
    (9000000, 9000000, True)
    >>> plan.schedule[0]
    Step(block='s0.F', stage='s0', kind='forward', devices=('device0',), micro_batch=0, start=0, end=1000000)
    """

    _core: _search.Plan

    def __init__(self, core: _search.Plan, report: dict[str, Any] | None = None, told: str = ""):
        self._core, self._told = core, told
        self.placement = Placement(core.written)  # as written; the plan says which modes it takes
        self.report = report or {}  # of plan(): what `ostinato plan --json` prints, the candidates among it

    @classmethod
    def from_file(cls, path: str | PathLike[str], placement: Placement | str | PathLike[str]) -> Plan:
        """A plan belongs to a placement: the same bytes. Raises InputError with file and line."""
        of = placement if isinstance(placement, Placement) else Placement.from_file(placement)
        return cls(_search.plan_file(fspath(path), of._core))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What `ostinato search --json` prints of it: objective, bounds, period, memory, and every named schedule beside it."""
        return json.loads(self._core.facts())

    @property
    def micro_batches(self) -> int:
        return self._core.micro_batches

    @property
    def objective(self) -> str:
        """ "makespan", "span" or "latency"."""
        return self._core.objective

    @property
    def makespan(self) -> int:
        """Nanoseconds to the last end."""
        return self._core.makespan

    @property
    def lower_bound(self) -> int:
        """Nanoseconds below which no schedule of the placement has its objective, proved; 0: nothing is proved."""
        return self._core.lower_bound

    @property
    def optimal(self) -> bool:
        """Whether that is proved."""
        return self._core.optimal

    @property
    def period(self) -> int:
        """Nanoseconds of one repetend; 0: no part repeats."""
        return self._core.period

    @property
    def peak_memory(self) -> tuple[int, ...]:
        """Bytes by device, static memory included."""
        return tuple(self._core.peak_memory)

    @property
    def cut_by_limit(self) -> bool:
        """The time ran out, or Ctrl-C came, before the search was through."""
        return self._core.cut_by_limit

    @cached_property
    def schedule(self) -> tuple[Step, ...]:
        """By start."""
        names = self.placement.devices
        rows = zip(*self._core.columns(), strict=True)
        return tuple(Step(b, s, k, tuple(names[d] for d in devices), *rest) for b, s, k, devices, *rest in rows)

    def to_frame(self) -> Any:
        """The schedule as a pandas.DataFrame, a row a step."""
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return pandas.DataFrame(self.schedule, columns=Step._fields)

    def to_dict(self) -> dict[str, Any]:
        """As docs/formats.md has it."""
        return json.loads(self.text)

    def html(self) -> str:
        """The page of `ostinato show --html`."""
        return self._core.html()

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html())}" style="width: 100%; height: 32em; border: 0"></iframe>'

    def __str__(self) -> str:
        return self._told or self._core.summary()

    def __repr__(self) -> str:
        proved = "optimal" if self.optimal else f"bound {self.lower_bound} ns"
        return f"<Plan {self.placement.name}: {self.micro_batches} micro-batches, {self.makespan} ns, {proved}>"


class Profile(_Text):
    """What a model costs, layer by layer (`ostinato-profile/1`), as `ostinato profile` writes it."""

    _core: _search.Profile

    def __init__(self, core: _search.Profile):
        self._core = core

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Profile:
        """Raises InputError with file and line."""
        return cls(_search.profile_file(fspath(path)))

    @classmethod
    def from_text(cls, text: str, name: str = "profile") -> Profile:
        """`name` stands in messages for the file."""
        return cls(_search.profile(text, name))

    @property
    def model(self) -> str:
        return self._core.model

    @property
    def layers(self) -> tuple[str, ...]:
        """Their names, in model order."""
        return tuple(self._core.layers)

    @property
    def noise(self) -> str:
        """Which times are not known because the machine was restless, in words; "" where all are."""
        return self._core.noise

    def to_dict(self) -> dict[str, Any]:
        """As docs/profile-format.md has it."""
        return json.loads(self.text)

    def __repr__(self) -> str:
        return f"<Profile {self.model}: {len(self.layers)} layers>"


class Devices:
    """Where a model may run: so many devices that are alike, or those of a device file (`ostinato-devices/1`). Those of a launch:
    `ostinato.devices.from_launcher()`.

    >>> Devices(4, memory="40GiB")
    Devices(4, memory='40GiB')
    """

    def __init__(self, count: int, memory: Memory = "unlimited"):
        self._core = _search.devices(count, _typed("device_memory", memory))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Devices:
        """Raises InputError with file and line, also of a profile that it names."""
        return cls._of(_search.cluster_file(fspath(path)))

    @classmethod
    def from_text(cls, text: str, name: str = "devices") -> Devices:
        """`name` stands in messages for the file; profiles that the text names are looked for beside it."""
        return cls._of(_search.cluster(text, name))

    @classmethod
    def _of(cls, core: _search.Devices) -> Devices:
        self = cls.__new__(cls)
        self._core = core
        return self

    def __len__(self) -> int:
        return self._core.count

    def to_dict(self) -> dict[str, Any]:
        """The device file, as docs/formats.md has it; of devices that are alike how many, and their memory."""
        return tomllib.loads(self._core.text) if self._core.text else {"count": len(self), "memory": self._core.memory}

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the device file. Devices that are alike have none: ValueError."""
        if not self._core.text:
            raise ValueError("devices that are alike are a number, not a file")
        write_text(Path(path), self._core.text)

    def __repr__(self) -> str:
        return f"Devices.from_text(...)  # {len(self)}" if self._core.text else f"Devices({len(self)}, memory={self._core.memory!r})"


@dataclass(frozen=True)
class Check:
    """What verify() found, in words."""

    passed: tuple[str, ...]
    failures: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether the plan holds."""
        return not self.failures


@dataclass(frozen=True)
class Simulation:
    """Makespans of a plan whose times vary, ascending, in nanoseconds."""

    makespans: tuple[int, ...]

    def at(self, percent: int) -> int:
        """The makespan that so many percent of the runs do not exceed: 0 the best, 50 the median, 100 the worst."""
        return self.makespans[(len(self.makespans) - 1) * percent // 100]


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
    workspace: PerDevice = 0,
    capacity: PerDevice = "unlimited",
    static: PerDevice = 0,
    latency: Time = 0,
    bandwidth: float = 0,
    bytes: Memory = 0,
    inference: bool = False,
) -> Placement:
    """A placement of a named shape: "v", "x", "m", "nn", "k", "looped", "wave", ... (`ostinato placement --help` draws them).

    Times and memory are those of one stage and one micro-batch; a list has one for each device. `weight` above 0 splits the backward.
    `bandwidth` is in GB/s, 0: bytes are free. `layers` of the model are shared by the stages, so that DeepSpeed can run a plan of it.

    >>> placement("v", devices=2, forward=[1000, 3000]).blocks
    ('s0.F', 's1.F', 's1.B', 's0.B')
    """
    given = {
        "forward": forward, "backward": backward, "weight": weight, "shard_forward": shard_forward, "shard_backward": shard_backward,
        "memory": memory, "shard_memory": shard_memory, "workspace": workspace, "static": static, "capacity": capacity,
        "latency": latency, "bandwidth": bandwidth, "bytes": bytes,
    }  # fmt: skip
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
    """Cuts the model into stages so that the busiest device is as little busy as possible and the memory suffices.

    `micro_batches` of a step bound what is in flight; 0: as many as there are stages. The result's `report` is what
    `ostinato partition --json` prints. Raises InfeasibleError where no partition fits.
    """
    options = {"chunks": chunks, "layout": layout, "stages": stages, "shard": shard, "recompute": recompute, "inference": inference,
               "split_backward": split_backward, "allow_incomplete": allow_incomplete}  # fmt: skip
    core, report = _search.partition(profile._core, _devices(devices, device_memory)._core, micro_batches, _settings(options))
    return Placement(core, json.loads(report))


def search(
    placement: Placement,
    *,
    micro_batches: int,
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    method: str = "auto",
    choose: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Searches the schedule of a placement: repeating part, warm-up and cool-down together, with proven bounds.

    `objective`: "makespan", "span" or "latency". `time_limit`: seconds until the best so far is taken; 0: none. `threads`: 0 is all;
    the plan does not depend on it. `method`: a named schedule instead of a search. `choose`: among the placement's modes, too.
    """
    options = {"objective": objective, "time_limit": time_limit, "threads": threads, "seed": seed, "method": method, "choose": choose}
    core, interrupted = _search.search(placement._core, micro_batches, _settings(options), progress)
    return _unless(interrupted, Plan(core))


MicroBatch = int | Mapping[str, Any]  # a size, or {"size": ..., "times": {block: ns}, "memory": {block: bytes}}


def search_sizes(
    placement: Placement,
    sizes: Sequence[MicroBatch] | str | PathLike[str],
    *,
    size: int = 1,
    effort: int = 100,
    time_limit: float = 10,
    seed: int = 0,
) -> Plan:
    """A plan for one step whose micro-batches differ: which enters when is searched, too. Never worse than 1F1B in the order given or
    in sorted orders; `lower_bound` is of these sizes. `effort`: percent of the usual work, which takes up to about 20 ms: cheap enough
    for every step.

    `sizes`: of each micro-batch, and `size`: of the one that the placement describes; times, memory and bytes grow in proportion. A
    micro-batch may name blocks with times (ns) and memory (bytes) of their own. Or a file (`ostinato-sizes/1`), which has all of it.

    >>> p = placement("v", devices=2, forward=100, backward=200)
    >>> plan = search_sizes(p, [10, 40, 20, 30], size=10)
    >>> plan.makespan, plan.micro_batches, bool(verify(plan))
    (3600, 4, True)
    """
    if isinstance(sizes, str | PathLike):
        batches = _search.sizes_file(placement._core, fspath(sizes))
    else:
        batches = [_micro_batch(placement, one, size) for one in sizes]
    if effort < 1:
        raise UsageError(f"effort is {effort}; it must be 1 percent or more")
    settings = _settings({"time_limit": time_limit, "seed": seed})
    return Plan(_search.search_sizes(placement._core, batches, settings, effort))


def _micro_batch(placement: Placement, one: MicroBatch, of: int) -> _search.MicroBatch:
    given: Mapping[str, Any] = one if isinstance(one, Mapping) else {"size": index(one)}
    if unknown := set(given) - {"size", "times", "memory"}:
        raise UsageError(f"a micro-batch has a size, times and memory, not {', '.join(map(repr, sorted(unknown)))}")
    figures = [dict(given.get(key, {})) for key in ("times", "memory")]
    return _search.micro_batch(placement._core, given.get("size", of), of, *figures)


def pareto(
    placement: Placement,
    *,
    micro_batches: int,
    points: int = 24,
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    choose: bool = False,
    progress: Progress | None = None,
) -> list[Plan]:
    """The curve of the objective over memory, from the most memory to the least that any schedule was found for; at most `points` plans.

    >>> curve = pareto(placement("v", devices=2, memory=1), micro_batches=4)
    >>> [(plan.facts["capacity"]["memory"], plan.makespan) for plan in curve]
    [(2, 15000), (1, 24000)]
    """
    options = {"objective": objective, "time_limit": time_limit, "threads": threads, "seed": seed, "choose": choose, "points": points}
    cores, interrupted = _search.pareto(placement._core, micro_batches, _settings(options), progress)
    return _unless(interrupted, [Plan(core) for core in cores])


@dataclass(frozen=True)
class SteadyState:
    """What goes on for ever in the middle of a long schedule: the same blocks again, a period later."""

    period: int  # ns, for `unroll` micro-batches; 0: none was found before an Interrupted
    unroll: int
    lower_bound: int  # ns a period: what work and memory need
    period_proved: bool  # no repeating part is quicker
    peak_memory: tuple[int, ...] | None  # bytes a device, static memory included; None: never the same twice
    memory_proved: bool  # none of this period needs less on the device that needs most
    left_behind: tuple[int, ...] = ()  # bytes a device that each micro-batch leaves, where peak_memory is None


def steady_state(placement: Placement, *, time_limit: float = 10) -> SteadyState:
    """The best rate of a placement for any number of micro-batches, and the least memory at that rate: `search --steady-state`.

    `time_limit`: seconds until the best so far is taken; 0: none. Raises InfeasibleError where nothing fits for ever, UndecidedError
    where none was found in the time. The bounds are P1 and P2 of docs/bounds.md.

    >>> found = steady_state(placement("v", devices=4, forward=100, backward=200, memory=1))
    >>> found.period, found.unroll, found.period_proved, found.peak_memory
    (300, 1, True, (4, 3, 2, 1))
    """
    text, interrupted = _search.steady_state(placement._core, time_limit)
    told = json.loads(text)
    peaks = told.pop("peak_memory")
    found = SteadyState(**{**told, "left_behind": tuple(told.get("left_behind", ())), "peak_memory": peaks and tuple(peaks)})
    return _unless(interrupted, found)


@dataclass(frozen=True)
class GraphRow:
    """One vertex of an operator graph, as it was assigned."""

    id: int
    device: int  # its id
    start: float  # as GraphPartition.makespan
    end: float


@dataclass(frozen=True)
class GraphPartition:
    """Where every vertex of an operator graph runs, and when. `str()` is what the command prints."""

    text: str = field(repr=False)  # of the CSV file
    report: dict[str, Any] = field(repr=False)  # as `ostinato partition --json` prints it
    told: str = field(repr=False)

    @property
    def makespan(self) -> float:
        """In units of the file, operations over operations a unit; of a profile in nanoseconds."""
        return self.report["makespan"]

    @property
    def lower_bound(self) -> float:
        """Proven for every assignment and every order."""
        return self.report["lower_bound"]

    @property
    def rows(self) -> list[GraphRow]:
        """By rising id of the vertex."""
        rows = [line.split(",") for line in self.text.splitlines()[1:]]
        return [GraphRow(int(v), int(device), float(start), float(end)) for v, device, start, end in rows]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes id, device, start and end of each vertex (CSV)."""
        write_text(Path(path), self.text)

    def __str__(self) -> str:
        return self.told.rstrip("\n")


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
    """Assigns the vertices of an operator graph to devices of different kind, speed and memory, and simulates one iteration.

    `graph` and `devices` are CSV files, as docs/formats.md has them. Or `graph` is a profile, whose layers' forwards and backwards are
    the vertices (`inference`: the forwards alone), and `devices` are as for `partition()`. `strategy`: "hash", "batch-split",
    "critical-path", "mite", "dfs", "heft", or "best" of these, improved; `schedule`: "fifo", "pct" or "msr", for all but the last two.
    `runs`: searches of "best" side by side (0: 2), else seeds (0: 1). `time_limit` of "best" in seconds; 0: none.

    Raises InfeasibleError where every assignment was tried, InputError where a file is wrong or none was found.

    >>> from tempfile import mkdtemp
    >>> graph, devices = Path(mkdtemp(), "graph.csv"), Path(mkdtemp(), "devices.csv")
    >>> head = "id,successors,predecessors,same device,tensor size,operations,memory,device kind"
    >>> _ = graph.write_text("\\n".join([head, "1,2;3,,,10,100,1,NO", "2,,,,10,100,1,NO", "3,,,,10,400,1,NO"]))
    >>> _ = devices.write_text("\\n".join(["id,memory,operations per time unit,rates,kind", "0,9999,100,20,CPU", "1,9999,100,,CPU"]))
    >>> found = partition_graph(graph, devices=devices)
    >>> found.makespan, found.lower_bound, [row.start for row in found.rows]
    (5.0, 5.0, [0.0, 1.5, 1.0])
    """
    request = _search.GraphRequest(strategy, schedule, seed, runs, time_limit, published_program)
    if isinstance(graph, Profile):
        if not isinstance(devices, int | Devices):
            raise UsageError("devices of a profile are a number or Devices: Devices.from_file() reads a device file")
        where = _devices(devices, device_memory)
        found = _search.partition_layers(graph._core, where._core, inference, allow_incomplete, request)
    else:
        if isinstance(devices, int | Devices):
            raise UsageError("devices of a graph are a CSV file, with their speeds and the rates between them")
        found = _search.partition_graph(fspath(graph), fspath(devices), request)
    report, text, told, interrupted = found
    return _unless(interrupted, GraphPartition(text, json.loads(report), told))


def plan(
    profile: Profile,
    *,
    devices: int | Devices,
    micro_batches: int,
    device_memory: Memory = "unlimited",
    objective: str = "makespan",
    time_limit: float = 10,
    threads: int = 0,
    seed: int = 0,
    method: str = "auto",
    max_chunks: int = 64,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    exact_losses: bool = False,
    replicas: int | str = 1,
    fewer_devices: bool = False,
    all_devices: bool = False,
    shard: str = "",
    inference: bool = False,
    split_backward: bool = False,
    allow_incomplete: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """From a profile to a plan: partitions the model in every way that may pay, searches what the bounds leave, and takes the shortest
    that fits the memory. `str()` of the result is the table of candidates, `report` all of them as data, `placement` the one chosen.

    `without` and `only` restrict what is tried beside whole backwards on one stage per device: "chunks", "split", "shards",
    "recompute", "branches", "moves", "fewer-devices". `exact_losses` leaves out what changes losses by rounding: split backwards, shards.
    `replicas`: so many pipelines beside each other, each with its share of `devices` and `micro_batches`; "auto": the number that makes
    a step shortest. The plan is of one of them, and `report["degrees"]` has them all.
    """
    options = {
        "objective": objective, "time_limit": time_limit, "threads": threads, "seed": seed, "method": method, "max_chunks": max_chunks,
        "without": list(without), "only": list(only), "exact_losses": exact_losses, "replicas": replicas,
        "fewer_devices": fewer_devices, "all_devices": all_devices, "shard": shard, "inference": inference,
        "split_backward": split_backward, "allow_incomplete": allow_incomplete,
    }  # fmt: skip
    where = _devices(devices, device_memory)
    core, report, told, interrupted = _search.plan_profile(profile._core, where._core, micro_batches, _settings(options), progress)
    return _unless(interrupted, Plan(core, json.loads(report), told))


def verify(plan: Plan, *, profile: Profile | None = None, devices: int | Devices | None = None) -> Check:
    """Checks every step, figure, bound and claim with code that shares nothing with the search.

    With `profile`, also what `plan()` claims of all other placements of its layers; `devices`: as given to `plan()`, where they are
    not all alike.

    >>> bool(verify(search(placement("m", devices=2), micro_batches=4)))
    True
    """
    passed, failures = _search.verify(plan._core)
    if profile is not None:
        others = _search.verify_others(plan._core, profile._core, None if devices is None else _devices(devices, "unlimited")._core)
        passed, failures = passed + others[0], failures + others[1]
    return Check(tuple(passed), tuple(failures))


def simulate(plan: Plan, *, jitter: float = 0, transfer_factor: float = 1, runs: int = 100, seed: int = 0) -> Simulation:
    """Replays the plan's order on each device with times that vary by up to the share `jitter`, and transfers that take
    `transfer_factor` times as long. The same seed gives the same makespans.

    >>> simulate(search(placement("v", devices=2), micro_batches=4)).at(100)
    15000
    """
    options = {"jitter": jitter, "transfer_factor": transfer_factor, "runs": runs, "seed": seed}
    return Simulation(tuple(_search.simulate(plan._core, _settings(options))))


def explain(plan: Plan) -> list[str]:
    """What holds up the makespan, in sentences."""
    return _search.explain(plan._core)


def lower(plan: Plan, *, transfers: bool = True) -> list[str]:
    """What each rank runs, a row a rank, as torch.distributed.pipelining reads it; shown free of deadlock.

    >>> lower(search(placement("v", devices=2), micro_batches=1), transfers=False)
    ['0F0,0B0', '1F0,1B0']
    """
    return _search.lower(plan._core, transfers)


def _typed(key: str, value: Any) -> str:
    """As it would be typed on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and key == "device_memory":
        return f"{value}B"
    if isinstance(value, list | tuple):
        return ",".join(_typed(key, one) for one in value)
    return str(value)


def _settings(given: dict[str, Any]) -> dict[str, str]:
    return {key: _typed(key, value) for key, value in given.items() if value is not None}


def _devices(devices: int | Devices, memory: Memory) -> Devices:
    if not isinstance(devices, Devices):
        return Devices(devices, memory)
    if memory != "unlimited":
        raise ValueError("device_memory goes with a number of devices; Devices have their own")
    return devices


def _unless(interrupted: bool, found: Found) -> Found:
    if interrupted:
        raise Interrupted(found)
    return found
