# SPDX-License-Identifier: Apache-2.0
"""The "ostinato" section of `ds_config.json`. It has one of three ways to a plan (or, with "sizes", a placement
alone):

    "ostinato": {
      "plan": "plan.json",            // run this one
      "placement": "placement.toml",  // default: placement.toml beside the plan; must be the one that the plan was made for

      "profile": "profile.json",      // or: search one at start, from a profile
      "auto": true,                   // or: run the first step under DeepSpeed's 1F1B, measure, search, and start again with the plan;
                                      // "measure": end there, and let the next start run the plan in "output";
                                      // "profile": end before the search, with profile.json in "output"
      "check": 1,                     // steps that DeepSpeed's 1F1B runs first, to compare the plan's steps with (0; with "auto" 1)
      "fallback": true,               // where the plan is slower than DeepSpeed's own steps: go on without it (with "auto" true)
      "search": {"time_limit": 30},   // how to search, for "profile" and "auto"; keys as in configs/options.toml

      "adapt": {"every": 50, "gain": 0.03, "move": true},  // plan again where devices or layers are slower or faster than planned (adapt)

      "sizes": "tokens",              // micro-batches differ in size, and each step gets its own plan; or "module:function"
      "size": 1024,                   // of the micro-batch that the placement describes; default: the mean of the first step
      "keep_order": true,             // add gradients in the order of 1F1B
      "effort": 15,                   // percent of the usual work of searching a step's plan

      "output": "out/ostinato",       // folder for the plan; the next run with "auto" uses it instead of searching
      "timeout_s": 600,               // a rank that waits longer says which instruction of which peer it waits for, and stops;
                                      // default: the time-out of the process group
      "trace": "out/trace",           // folder for ostinato-trace/1 files; absent: no trace
      "memory": "out/memory",         // folder for records of who holds each rank's memory over one step; absent: no record
      "require": true                 // false: where a plan does not work with this run, go on under DeepSpeed's 1F1B
    }

Relative paths start at the folder of the configuration file, or at the working directory where DeepSpeed was
given a dictionary.
"""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from os.path import isfile
from pathlib import Path
from typing import Any, ClassVar, Literal

from ostinato.core import Devices, placement, search
from ostinato.errors import Error
from ostinato.files import no_file, why_not_writable
from ostinato.groups import timeout_of
from ostinato.restrictions import Restriction
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..errors import OstinatoError


class Search(BaseModel):
    """How to search a plan: options of `ostinato plan`; None: its default there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Seconds for all placements together; 0: none.
    time_limit: float | None = Field(default=None, ge=0, le=100_000_000)
    threads: int | None = Field(default=None, ge=0, le=1024)
    seed: int | None = Field(default=None, ge=0, le=(1 << 63) - 1)
    effort: int | None = Field(default=None, ge=1, le=1_000_000)  # percent of the usual work
    objective: Literal["makespan", "span", "latency"] | None = None
    method: str | None = Field(default=None, min_length=1)
    robust: float | None = Field(default=None, ge=0, le=1)  # by how much times vary
    # "40GiB"; default: what the accelerator has.
    device_memory: str | None = Field(default=None, min_length=1)
    max_chunks: int | None = Field(default=None, ge=1, le=64)
    ends: Literal["fixed", "free"] = (
        "fixed"  # inputs on the first rank and the loss on the last, as in 1F1B; "free": anywhere
    )
    exact_losses: bool = True  # False: also split backwards and shards, which change losses by rounding
    inference: bool = False  # forwards alone, for a script that only evaluates
    allow_incomplete: bool = False

    RESTRICT: ClassVar[set[str]] = {"max_chunks", "ends", "exact_losses"}  # what restrictions() says

    def restrictions(self) -> list[Restriction]:
        made = []
        if self.max_chunks is not None:
            made.append(
                Restriction(
                    "most_chunks", f'"search" has "max_chunks": {self.max_chunks}', chunks=self.max_chunks
                )
            )
        if self.exact_losses:
            made += [
                Restriction(rule, '"search": {"exact_losses": false} allows them')
                for rule in ("whole_backwards", "no_shards")
            ]
        if self.ends == "fixed":
            made.append(Restriction("fixed_ends", '"search": {"ends": "free"} allows them'))
        return made

    def deciding(self) -> dict[str, Any]:
        """The options that decide which plan is found."""
        return self.model_dump(exclude={"threads"})


class Adapting(BaseModel):
    """Plans again while the run goes on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Steps between two comparisons of measured block times with the plan.
    every: int = Field(default=50, ge=2, le=100_000)
    # Share of a step's time; a new plan that gains less is not worth it.
    gain: float = Field(default=0.03, ge=0, le=10)
    move: bool = False  # all ranks start again with the new plan once the script has saved a checkpoint


class Section(BaseModel):
    """The section as written; paths are still relative."""

    model_config = ConfigDict(extra="forbid", strict=True)
    PATHS: ClassVar[tuple[str, ...]] = ("plan", "placement", "profile", "output", "trace", "memory")

    plan: str | None = Field(default=None, min_length=1)
    placement: str | None = Field(default=None, min_length=1)
    profile: str | None = Field(default=None, min_length=1)
    auto: bool | Literal["measure", "profile"] = False
    check: int | None = Field(default=None, ge=0, le=1000)
    fallback: bool | None = None
    search: Search | None = None
    adapt: Adapting | None = None
    sizes: str | None = Field(default=None, min_length=1)
    size: float | None = Field(default=None, gt=0, le=2**50)
    keep_order: bool = False
    effort: int | None = Field(default=None, ge=1, le=1_000_000)
    output: str | None = Field(default=None, min_length=1)
    timeout_s: float = Field(default_factory=timeout_of, gt=0, le=1e7)
    trace: str | None = Field(default=None, min_length=1)
    memory: str | None = Field(default=None, min_length=1)
    require: bool = True

    @field_validator("auto", mode="before")
    @classmethod
    def _is_a_way(cls, value: object) -> object:
        if value is True or value is False or value in ("measure", "profile"):
            return value
        raise ValueError('must be true, false, "measure" or "profile"')

    @property
    def checks(self) -> int:
        """How many steps DeepSpeed's own 1F1B runs first."""
        return int(self.auto not in (False, "profile")) if self.check is None else self.check

    @property
    def falls_back(self) -> bool:
        return bool(self.auto) if self.fallback is None else self.fallback

    @property
    def uses_kept(self) -> bool:
        """Whether it runs the plan that an earlier run has left in "output"."""
        return bool(self.auto) and self.auto != "profile" and self.output is not None

    @property
    def searches(self) -> bool:
        """Whether the plan is made when the run starts."""
        return self.plan is None

    @property
    def placement_file(self) -> str | None:
        """As written, or beside the plan as written; None: a search makes it."""
        return self.placement or (str(Path(self.plan).with_name(PLACEMENT)) if self.plan else None)


class Paths(BaseModel):
    """The section's files, absolute; `plan` and `placement` are None until the search has made them."""

    plan: Path | None
    placement: Path | None
    profile: Path | None
    output: Path | None
    trace: Path | None
    memory: Path | None
    sizes: Path | None = (
        None  # the profile for the plans of single steps, and the function that it was measured with
    )


PLACEMENT = "placement.toml"  # beside the plan, where the section names none
Fault = tuple[tuple[str, ...], str]  # the key, in the section, and what is wrong with it


def parse_section(section: object, where: str) -> Section:
    """Checks a section. Raises an OstinatoError with a line for every fault, which starts with `where`; where
    that is a file, also with the line of the key."""
    if not isinstance(section, dict):
        advice = 'must be an object: {"auto": true}, or {"plan": "plan.json"}'
        raise _wrong([((), _in_section(()) + advice)], where)
    try:
        made = Section.model_validate(section)
    except ValidationError as error:
        raise _wrong([(tuple(map(str, e["loc"])), _fault(e)) for e in error.errors()], where) from None
    if faults := [(keys, _in_section(keys) + what) for keys, what in _faults(made)]:
        raise _wrong(faults, where)
    return made


def _wrong(faults: list[Fault], where: str) -> OstinatoError:
    """In the order of the file."""
    try:
        text = Path(where).read_text()
    except (OSError, ValueError):  # the configuration is no file
        text = ""
    lines = sorted((_line_of(keys, text), what) for keys, what in faults)
    return OstinatoError("\n".join(f"{where}{f':{line}' if line else ''}: {what}" for line, what in lines))


def _line_of(keys: tuple[str, ...], text: str) -> int:
    """Of a key of the section; 0 where it is not found, or the text is no file's. json.loads() does not say."""
    if not text:
        return 0
    at = 0
    for key in ("ostinato", *keys):
        found = re.compile(rf"{re.escape(json.dumps(key))}\s*:").search(text, at)
        if found is not None:
            at = found.start()
        elif key != "ostinato":  # OSTINATO_PLAN may name a file that is the section alone
            return 0
    return text.count("\n", 0, at) + 1


def _faults(section: Section) -> Iterator[Fault]:
    """Requires exactly one way to a plan, and no key that belongs to another."""
    ways = [key for key in ("plan", "profile", "auto") if getattr(section, key)]
    yield from _faults_of_sizes(section)
    if not ways:
        if not (section.sizes and section.placement):
            yield (), 'needs "plan", "profile" or "auto": true'
        return
    if len(ways) > 1:
        given = " and ".join(f'"{way}"' for way in ways)
        yield (), f"has {given}, of which only one is allowed"
        return
    if (section.plan or "").endswith(".toml") and (section.placement or "").endswith(".json"):
        yield (), 'has "plan" and "placement" swapped: the plan is a JSON file, and its placement a TOML file'
        return
    if section.placement and section.searches and (section.auto or not section.sizes):
        yield ("placement",), 'goes with "plan": a search makes its own placement'
    if section.auto in ("measure", "profile") and not section.output:
        made = "plan" if section.auto == "measure" else "profile"
        yield ("auto",), f'is "{section.auto}", which needs "output", a folder for the {made}'
    if section.search is not None and (memory := section.search.device_memory) and not _is_memory(memory):
        yield (
            ("search", "device_memory"),
            f'needs a number with a unit, like "40GiB" or "40GB", not "{memory}"',
        )
    if section.memory and _is_memory(section.memory):
        limit = f'"search": {{"device_memory": "{section.memory}"}}'
        yield ("memory",), f"is a folder for records; what limits a plan is {limit}"
    if section.search is not None and (method := section.search.method):
        if unknown := _unknown_method(method):
            yield ("search", "method"), unknown
    if section.auto and section.search is not None and section.search.inference:
        yield ("search", "inference"), 'needs "profile", because "auto" measures while training'
    if section.fallback and not section.auto and not section.checks:
        yield ("fallback",), 'needs "auto" or "check", which time DeepSpeed\'s own steps first'
    if section.adapt is not None:
        if not section.searches or not section.output:
            yield ("adapt",), 'needs "auto" or "profile", and "output", a folder for new plans'
        if section.sizes or (section.search is not None and section.search.inference):
            yield ("adapt",), "needs a training that runs the same plan in every step"
    for key in ("search", "output"):
        if getattr(section, key) is not None and not section.searches:
            off = "" if section.plan else ", or no section, for DeepSpeed alone"
            yield (key,), f'needs "profile" or "auto": true{off}'


def _is_memory(text: str) -> bool:
    try:
        Devices(1, text)
    except Error:
        return False
    return True


def _unknown_method(method: str) -> str:
    """What the search says of it before it looks at a placement; "": nothing."""
    try:
        search(placement("v", devices=1), micro_batches=1, method=method)
    except Error as error:  # a method that is known may not fit the placement
        _, unknown, known = str(error).partition("not one of ")
        return f'is "{method}", {unknown}{known}' if unknown else ""
    return ""


# Options that do not choose a placement.
OF_ORDERS = {"time_limit", "threads", "seed", "effort", "method", "objective"}


def _faults_of_sizes(section: Section) -> Iterator[Fault]:
    if section.sizes is None:
        for key in ("size", "keep_order", "effort"):
            if getattr(section, key):
                also = '; that of a search belongs in "search"' if key == "effort" else ""
                yield (key,), f'needs "sizes"{also}'
        return
    if section.auto and section.size:
        yield ("size",), 'does not go with "auto", which measures the size'
    search = section.search or Search()
    if (search.objective or "makespan") != "makespan":
        yield (
            ("search", "objective"),
            'does not go with "sizes", which always minimises the makespan of each step',
        )
    if search.robust:
        yield (
            ("search", "robust"),
            'does not go with "sizes", which plans each step for the micro-batches that it has',
        )
    if section.placement and section.plan is None:
        for key in sorted(search.model_fields_set - OF_ORDERS):
            yield ("search", key), 'does not go with "placement", which says where the stages are'


def _in_section(keys: tuple[str, ...]) -> str:
    """What a message begins with."""
    if not keys:
        return 'the "ostinato" section '
    return f'"{keys[-1]}" in the "{("ostinato", *keys)[-2]}" section '


WORDS = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "model_type": "must be an object ({{}} has the defaults)",
    "string_too_short": "must have at least one character",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}


def _fault(error: Any) -> str:
    keys = tuple(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {_in_section(keys).strip()}: {_suggestion(*('ostinato', *keys)[-2:])}"
    words = WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    limits = {
        name: int(limit) if isinstance(limit, float) else limit
        for name, limit in error.get("ctx", {}).items()
    }
    seconds = " of seconds" * (error["type"] == "float_type" and keys[-1] in ("time_limit", "timeout_s"))
    return f"{_in_section(keys)}{words.format(**limits)}{seconds}, not {_as_written(error['input'])}"


def _as_written(value: object) -> str:
    """In a configuration, which is JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _suggestion(inside: str, key: str) -> str:
    """The key that was probably meant, in this section or another."""
    known = {"ostinato": Section.model_fields, "search": Search.model_fields, "adapt": Adapting.model_fields}
    others = [other for other in known if other != inside]
    near = get_close_matches(key, known[inside], 1)
    exact = [other for other in others if key in known[other]]
    if exact and not (near and key in near[0]):
        return f'it belongs in "{exact[0]}"'
    if near:
        return f'did you mean "{near[0]}"?'
    for other in others:
        if near := get_close_matches(key, known[other], 1):
            return f'"{near[0]}" belongs in "{other}"'
    return f"known keys: {', '.join(known[inside])}"


def resolve(section: Section, file: str | None, found: Path | None = None) -> Paths:
    """Makes paths absolute. `found`: the folder in which the first start has left its plan for the second.
    Raises OstinatoError where the named plan, or its placement, is missing.
    """
    base = Path(file).parent if file else Path.cwd()
    named: dict[str, Any] = {
        key: base / value if (value := getattr(section, key)) else None for key in Section.PATHS
    }
    if found is not None and not _names_another(named["plan"], found / "plan.json"):
        plan, sizes = found / "plan.json", found / "sizes.json"
        if isfile(plan):
            named |= {
                "plan": plan,
                "placement": found / "placement.toml",
                "sizes": sizes if isfile(sizes) else None,
            }
        return Paths(**named)
    if section.searches:
        if (placement := named["placement"]) and not isfile(placement):
            raise _no_file(
                "placement", placement, "; make one with ostinato placement or ostinato partition", file
            )
        return Paths(**named)
    plan = named["plan"]
    if not isfile(plan):
        advice = (
            "; make one with ostinato plan PROFILE --output PLAN (for your own placement: ostinato search)"
        )
        raise _no_file("plan", plan, advice, file)
    named["placement"] = named["placement"] or plan.with_name(PLACEMENT)
    if not isfile(named["placement"]):
        which = (
            "" if section.placement else ' (the default, beside the plan; set "placement" if it is elsewhere)'
        )
        # OSTINATO_PLAN may name the plan itself, which is no configuration.
        raise _no_file("placement", named["placement"], which, None if file == str(plan) else file)
    return Paths(**named)


def _no_file(key: str, path: Path, more: str, file: str | None) -> OstinatoError:
    """Of a file that a key of the section names. `file`: the configuration's."""
    what = f'"{key}": {path}: {no_file(path)}{more}'
    return OstinatoError(what) if file is None else _wrong([((key,), what)], file)


def _names_another(named: Path | None, found: Path) -> bool:
    """Whether this is a second engine, for which the first start did not make its plan."""
    return named is not None and isfile(named) and isfile(found) and named.read_bytes() != found.read_bytes()


def check_outputs(paths: Paths, rank: int) -> None:
    """Raises OstinatoError where this rank could not write its output files: before step 1 instead of after
    the training."""
    writes = {"trace": f"rank-{rank}.json", "memory": f"rank-{rank}.json", "output": "plan.json"}
    if rank != 0:
        del writes["output"]
    for key, name in writes.items():
        folder = getattr(paths, key)
        if folder is not None and (reason := why_not_writable(folder / name)):
            raise OstinatoError(f'"{key}" in the "ostinato" section: {folder}: {reason}')
