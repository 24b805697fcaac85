# SPDX-License-Identifier: Apache-2.0
"""Searches a plan when the run starts: rank 0 searches, and sends the same two files to every rank.

    with shared_plan(section, paths, Size(devices=4, micro_batches=8)) as found:     # all ranks must call it
        program = plans.lower(found)

The files go through the store of the default process group: nodes need not share a file system, and waiting
ranks are not in a collective.
"""

import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from os.path import isfile
from pathlib import Path

import torch.distributed as dist
from ostinato.core import Devices, Placement, Plan, Profile, plan, search
from ostinato.errors import Error, InfeasibleError, UndecidedError, printable, put
from ostinato.files import ADAPTED, BASE, BASE_DEVICES, Diagnostic, no_file
from ostinato.profile.machine.device import usable
from torch.distributed.distributed_c10d import _get_default_store

from . import verdict
from .config import Paths, Search, Section
from .kept import PLACEMENT, PLAN, SIZES, Size, keeps_for, put_aside, texts_of_kept, verdict_of
from ..errors import NoPlan, OstinatoError

NO_LIMIT = timedelta(days=7)
USUAL_LIMIT = 10  # seconds of a search, by default
_rounds = count()  # every rank makes its engines in the same order


@contextmanager
def shared_plan(section: Section, paths: Paths, size: Size) -> Iterator[Paths]:
    """`paths` with a plan and its placement, in files that exist inside the with block.

    Raises the same OstinatoError on every rank where the search finds no plan: NoPlan where none fits.
    """
    with _shared(lambda: _found(section, paths, size), section, paths) as found:
        assert found is not None
        yield found


@contextmanager
def kept_plan(section: Section, paths: Paths, size: Size) -> Iterator[Paths | None]:
    """The same without a search: the plan of this size that an earlier run with "auto" has left in "output"; for a
    "placement" any plan, as it only says where layers are; else None.
    """
    with _shared(lambda: _kept(section, paths, size), section, paths) as found:
        yield found


@contextmanager
def _shared(answer: Callable[[], dict[str, str]], section: Section, paths: Paths) -> Iterator[Paths | None]:
    """`answer`: called on rank 0, returns the texts of files by name; {}: there are none."""
    store, key = _get_default_store(), f"ostinato/search/{next(_rounds)}"
    if dist.get_rank() == 0:
        packed = zlib.compress(json.dumps(_or_error(answer)).encode())
        store.set(key, packed)  # type: ignore[arg-type]  # which takes bytes, too
    else:
        _wait(store, key, section)
    said = json.loads(zlib.decompress(store.get(key)))
    if "error" in said:
        raise (NoPlan if said["kind"] == NoPlan.__name__ else OstinatoError)(said["error"])
    if not said:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ostinato-") as folder:
        for name, text in said.items():
            (Path(folder) / name).write_text(text)
        sizes = Path(folder) / SIZES if SIZES in said else None
        yield paths.model_copy(
            update={"plan": Path(folder) / PLAN, "placement": Path(folder) / PLACEMENT, "sizes": sizes}
        )


@contextmanager
def plan_of_size(section: Section, paths: Paths, placement: str, micro_batches: int) -> Iterator[Paths]:
    """A plan for another number of micro-batches on `placement` (its text). All ranks must call it."""

    def answer() -> dict[str, str]:
        try:
            found = _on(Placement.from_text(placement), section.search or Search(), micro_batches)
        except Error as error:
            raise OstinatoError(str(error)) from None
        return {PLAN: found.text, PLACEMENT: placement}

    with _shared(answer, section, paths) as found:
        assert found is not None
        yield found


def texts_of(paths: Paths) -> dict[str, str]:
    """The texts of a plan's files, by name."""
    return {
        path.name: path.read_text() for path in (paths.plan, paths.placement, paths.sizes) if path is not None
    }


def _or_error(answer: Callable[[], dict[str, str]]) -> dict[str, str]:
    try:
        return answer()
    except (OSError, OstinatoError) as error:
        return {"error": str(error), "kind": type(error).__name__}


def _kept(section: Section, paths: Paths, size: Size) -> dict[str, str]:
    if paths.placement is not None:
        found = _of_placement(section.search or Search(), paths.placement, Size(size.devices, 1))
        return {PLAN: found.text, PLACEMENT: found.placement.text}
    if not keeps_for(section, paths, size) or verdict_of(section, paths):
        return {}
    return texts_of_kept(section, paths)


def _found(section: Section, paths: Paths, size: Size) -> dict[str, str]:
    wanted = section.search or Search()
    if paths.placement is not None:
        found = _of_placement(wanted, paths.placement, size)
    else:
        assert paths.profile is not None
        found = _search(wanted, paths.profile, size)
    if paths.output is not None:
        with suppress(OstinatoError):  # whatever lay there
            put_aside(paths, size.devices)
        # A run that ends between the two leaves no plan, rather than one for another placement.
        (paths.output / PLAN).unlink(missing_ok=True)
        Diagnostic(paths.output / PLACEMENT).write(found.placement.text)
        Diagnostic(paths.output / PLAN).write(found.text)
        for name in verdict.BESIDE:  # of the plan before it
            (paths.output / name).unlink(missing_ok=True)
        digest = hashlib.sha256(found.text.encode()).hexdigest()
        verdict.leave_options(paths.output / PLAN, digest, wanted.deciding())
        base = paths.output / ADAPTED / BASE
        if paths.profile is not None and paths.profile != base:
            base.unlink(missing_ok=True)  # of the plan before it
            if section.adapt is not None:
                Diagnostic(base).write(paths.profile.read_text())
        base.with_name(BASE_DEVICES).unlink(missing_ok=True)
    costs = _costs_by_size(section, paths)
    if section.auto and paths.output is not None and costs:
        Diagnostic(paths.output / SIZES).write(costs[SIZES])
    return {PLAN: found.text, PLACEMENT: found.placement.text} | costs


def _costs_by_size(section: Section, paths: Paths) -> dict[str, str]:
    """The profile that the plans of single steps need."""
    if section.sizes is None or paths.profile is None:
        return {}
    # Long, and not needed.
    profile = json.loads(paths.profile.read_text()) | {"operators": [], "transfers": []}
    return {SIZES: json.dumps({"function": section.sizes, "profile": profile})}


def costs_in(sizes: Path | None) -> str:
    """The profile that plans of steps follow, out of SIZES; "" where there is none."""
    return json.dumps(json.loads(sizes.read_text())["profile"]) if sizes else ""


def _search(search: Search, profile: Path, size: Size) -> Plan:
    """Raises OstinatoError with what ostinato.plan() said."""
    if not isfile(profile):
        raise OstinatoError(
            f'"profile": {profile}: {no_file(profile)}; make one with ostinato profile SCRIPT --output PROFILE'
        )
    options = search.model_dump(exclude_none=True, exclude=Search.RESTRICT)
    memory = options.pop("device_memory", None) or _device_memory()
    try:
        on = Devices(size.devices, memory, size.hosts)
        times = Profile.from_file(profile).restricted(size.restrictions)
        found = plan(times, devices=on, micro_batches=size.micro_batches, all_devices=True, **options)
    except Error as error:
        why = f"infeasible: {error}" if isinstance(error, InfeasibleError) else str(error)
        kind = NoPlan if isinstance(error, InfeasibleError | UndecidedError) else OstinatoError
        raise kind(f'the search that the "ostinato" section asks for found no plan: {why}') from None
    put(f"ostinato: searched for {found.report['seconds']:.1f} s: {found.report['chosen']}")
    if times.noise:
        put(f"ostinato: {printable(times.noise)}")
    for line in found.report["not_tried"]:
        put(f"ostinato: not tried: {printable(line)}")
    for line in filter(None, (found.report.get("memory"), found.report.get("limit"))):
        put(f"ostinato: {line}")
    return found


def _of_placement(wanted: Search, placement: Path, size: Size) -> Plan:
    """A plan for micro-batches of equal size: evaluations run it, and the plans of single steps are checked
    against it."""
    try:
        return _on(Placement.from_file(placement), wanted, size.micro_batches)
    except Error as error:
        raise OstinatoError(f'"placement": {error}') from None


def _on(placement: Placement, wanted: Search, micro_batches: int) -> Plan:
    options = wanted.model_dump(
        include={"time_limit", "threads", "seed", "effort", "method", "robust"}, exclude_none=True
    )
    return search(placement, micro_batches=micro_batches, **{"time_limit": 2, **options})


def _device_memory() -> str:
    """That tensors can have of this rank's accelerator. A CPU's memory is shared by its ranks, so it counts as
    unlimited."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    return "unlimited" if accelerator.device_name() == "cpu" else f"{usable(accelerator.total_memory())}B"


def _wait(store, key: str, section: Section) -> None:
    search = section.search or Search()
    limit = USUAL_LIMIT if search.time_limit is None else search.time_limit
    patience = timedelta(seconds=section.timeout_s + limit)
    try:
        store.wait([key], NO_LIMIT if limit == 0 else patience)
    except dist.DistError:
        raise OstinatoError(f"rank 0 did not find a plan within {patience.total_seconds():g} s") from None
