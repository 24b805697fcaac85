# SPDX-License-Identifier: Apache-2.0
"""The objects of ostinato.core: placements, plans, profiles, devices, and results about plans.
Times are integers in nanoseconds, amounts of memory integers in bytes.
"""

from __future__ import annotations

import html
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from ostinato import _search, megatron
from ostinato.arguments import check_counts, typed
from ostinato.errors import UsageError, counted
from ostinato.files import write_text
from ostinato.restrictions import Restriction

Time = int | str  # nanoseconds, or with a unit
Memory = int | str  # bytes, or with a unit
PerDevice = int | str | Sequence[int | str]  # one for all, or one a device


class _Text:
    """An object with the content of a file: equal if the bytes are. It can be pickled and copied."""

    _core: Any

    @property
    def text(self) -> str:
        """The bytes of the file, as save() writes them."""
        return self._core.text

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the file: to a temporary one, which then replaces it."""
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
    >>> m.times["s0.F"], m.times["s0.B"]
    (1000000, 2000000)
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
        """`name`: the name of the file in messages."""
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

    @property
    def times(self) -> dict[str, int]:
        """Nanoseconds of each block."""
        return dict(zip(self._core.blocks, self._core.times, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """As docs/formats.md has it."""
        return tomllib.loads(self.text)

    def megatron_layout(self, layers: str = "") -> str:
        """What Megatron-LM takes as `--pipeline-model-parallel-layout`, with `--pipeline-model-parallel-size`
        the number of devices.

        `layers` has a letter for each layer of the model: "E" embedding, "t" decoder, "m" multi-token
        prediction, "L" head and loss, "." one that Megatron-LM holds in another (a last norm); "t*3" is
        "ttt". Without it the first is E, the last L, all others t. Raises UsageError where the text cannot
        say it: waves, sharded stages, two directions, branches.

        >>> placement("looped", devices=2, chunks=2, layers=8).megatron_layout()
        'Et|tt|tt|tL'
        """
        return megatron.layout(self.to_dict(), layers)

    def __repr__(self) -> str:
        return f"<Placement {self.name}: {counted(len(self.blocks), 'block')} on {counted(len(self.devices), 'device')}>"


class Step(NamedTuple):
    """A block of one micro-batch in a plan."""

    block: str
    stage: str
    kind: str  # "forward", "backward", "backward_input", "backward_weight", "offload", "load" or "other"
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
        self.placement = Placement(core.placement)
        self.report = report or {}  # of plan(): what `ostinato plan --json` prints, the candidates among it

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], placement: Placement | str | PathLike[str] | None = None
    ) -> Plan:
        """A plan belongs to a placement: the same bytes. None: the one in the plan's folder, found by its digest.
        Raises InputError with file and line."""
        if placement is None:
            placement = _search.placement_of(fspath(path))
        of = placement if isinstance(placement, Placement) else Placement.from_file(placement)
        return cls(_search.plan_file(fspath(path), of._core))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What `ostinato search --json` prints of it: objective, bounds, period, memory, and every named
        schedule beside it."""
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
    def predicted_makespan(self) -> int:
        """Nanoseconds that it takes where devices share processors (`hosts`); else the makespan."""
        return self._core.predicted_makespan

    @property
    def lower_bound(self) -> int:
        """Nanoseconds below which no schedule of the placement has its objective, proved; 0: nothing is
        proved."""
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
        """Bytes by device in the schedule, static memory included."""
        return tuple(self._core.peak_memory)

    @property
    def peak_with_step(self) -> tuple[int, ...]:
        """The same, or what the optimizer's step reaches where that is more, as `ostinato plan` prints it."""
        return tuple(self._core.peak_with_step)

    @property
    def cut_by_limit(self) -> bool:
        """The time ran out, or Ctrl-C came, before the search was through."""
        return self._core.cut_by_limit

    @cached_property
    def schedule(self) -> tuple[Step, ...]:
        """By start."""
        names = self.placement.devices
        rows = zip(*self._core.columns(), strict=True)
        return tuple(
            Step(b, s, k, tuple(names[d] for d in devices), *rest) for b, s, k, devices, *rest in rows
        )

    def to_frame(self) -> Any:
        """The schedule as a pandas.DataFrame, a row a step."""
        import pandas

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
        return f"<Plan {self.placement.name}: {counted(self.micro_batches, 'micro-batch')}, {self.makespan} ns, {proved}>"


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
        """`name`: the name of the file in messages."""
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

    def restricted(self, restrictions: Sequence[Restriction]) -> Profile:
        """The same, and plans of it obey these restrictions, too."""
        return Profile(_search.restricted(self._core, [one.row for one in restrictions]))

    def to_dict(self) -> dict[str, Any]:
        """As docs/profile-format.md has it."""
        return json.loads(self.text)

    def __repr__(self) -> str:
        return f"<Profile {self.model}: {counted(len(self.layers), 'layer')}>"


class Devices:
    """Where a model may run: a number of equal devices, or the devices of a device file
    (`ostinato-devices/1`). Those of a launch: `ostinato.devices.from_launcher()`.

    >>> Devices(4, memory="40GiB")
    Devices(4, memory='40GiB')

    `hosts`: (devices, cores) of each host in turn, where devices share processors, as ranks on a CPU do that
    has fewer cores than ranks: `Devices(4, hosts=[(4, 2)])`. A plan is then judged by what its step takes
    with that sharing.
    """

    def __init__(self, count: int, memory: Memory = "unlimited", hosts: Sequence[tuple[int, int]] = ()):
        check_counts(devices=count)
        try:
            self._hosts = tuple((index(devices), index(cores)) for devices, cores in hosts)
        except TypeError:
            raise UsageError(f"hosts is {hosts!r}; it must be pairs of devices and cores: [(4, 2)]") from None
        self._core = _search.devices(count, typed("device_memory", memory), list(self._hosts))
        self._made: tuple[Any, tuple[Any, ...]] = Devices, (count, memory, self._hosts)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Devices:
        """Raises InputError with file and line, also of a profile that it names."""
        return cls._of(_search.cluster_file(fspath(path)), str(Path(path).absolute()))

    @classmethod
    def from_text(cls, text: str, name: str = "devices") -> Devices:
        """`name`: the name of the file in messages; profiles that the text names are searched beside it."""
        return cls._of(_search.cluster(text, name), name)

    @classmethod
    def _of(cls, core: _search.Devices, name: str) -> Devices:
        self = cls.__new__(cls)
        self._core = core
        self._hosts = ()
        self._made = Devices.from_text, (core.text, name)
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Devices) and other._made == self._made

    def __hash__(self) -> int:
        return hash(self._made)

    def __len__(self) -> int:
        return self._core.count

    def to_dict(self) -> dict[str, Any]:
        """The device file, as docs/formats.md has it; of devices that are alike how many, their memory, and the
        hosts that were given."""
        if self._core.text:
            return tomllib.loads(self._core.text)
        shared = {"hosts": [list(host) for host in self._hosts]} if self._hosts else {}
        return {"count": len(self), "memory": self._core.memory} | shared

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the device file. Devices that are alike have none: ValueError."""
        if not self._core.text:
            raise UsageError("equal devices are a number, not a file")
        write_text(Path(path), self._core.text)

    def __repr__(self) -> str:
        if self._core.text:
            return f"Devices.from_text(...)  # {len(self)}"
        shared = f", hosts={list(self._hosts)}" if self._hosts else ""
        return f"Devices({len(self)}, memory={self._core.memory!r}{shared})"


@dataclass(frozen=True)
class Check:
    """The findings of verify(), in words."""

    passed: tuple[str, ...]
    failures: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether the plan holds."""
        return not self.failures


@dataclass(frozen=True)
class Simulation:
    """Makespans of a plan under varying times, ascending, in nanoseconds."""

    makespans: tuple[int, ...]

    def at(self, percent: int) -> int:
        """The least makespan that at least this many percent of the runs do not exceed: 0 the best, 50 the
        median, 100 the worst."""
        check_counts(percent=percent)
        if not 0 <= percent <= 100:
            raise UsageError(f"percent is {percent}; it must be from 0 to 100")
        return self.makespans[_search.nearest_rank(len(self.makespans), percent)]

    def __repr__(self) -> str:
        return f"<Simulation: {counted(len(self.makespans), 'run')}, {self.at(0)} to {self.at(100)} ns>"


@dataclass(frozen=True)
class SteadyState:
    """The steady state in the middle of a long schedule: the same blocks repeat, one period later."""

    period: int  # ns, for `unroll` micro-batches; 0: none was found before an Interrupted
    unroll: int
    lower_bound: int  # ns a period: what work and memory need
    period_proved: bool  # no repeating part of `unroll` micro-batches is quicker
    peak_memory: tuple[int, ...] | None  # bytes a device, static memory included; None: never the same twice
    memory_proved: bool  # none of this period needs less on the device that needs most
    # Bytes a device that each micro-batch leaves, where peak_memory is None.
    left_behind: tuple[int, ...] = ()


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
        """Proven for every assignment and every order of the graph. A graph made of a profile estimates transfers
        (a latency counts as a part of the rate) and the speeds of kinds: its bound does not bind plans."""
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
