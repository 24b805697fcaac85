"""A plan that is searched when the run starts: rank 0 searches, and every rank gets the bytes of the same two files.

    with shared_plan(section, paths, Size(devices=4, micro_batches=8)) as found:     # all ranks must call it
        program = plans.lower(found)

They travel through the store of the default process group, so nodes need not share a file system, and ranks that wait hold
no collective. The search is a process of its own: it cannot disturb the one that trains.
"""

import json
import os
import subprocess
import sys
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from .config import Paths, Search, Section
from .errors import OstinatoError

PLAN, PLACEMENT = "plan.json", "placement.toml"
FOUND = (0, 5)  # exit statuses with a plan: done, and stopped at a limit with the best so far
NO_LIMIT = timedelta(days=7)
USUAL_LIMIT = 10  # seconds of a search, where the section says nothing
_rounds = count()  # every rank makes its engines in the same order


@dataclass(frozen=True)
class Size:
    """What a plan must fit: `devices` pipeline ranks, `micro_batches` a step."""

    devices: int
    micro_batches: int


@contextmanager
def shared_plan(section: Section, paths: Paths, size: Size) -> Iterator[Paths | None]:
    """`paths` with a plan and its placement, in files that last for the block; None where "auto" has yet to measure.

    Raises the same OstinatoError on every rank where no plan is found.
    """
    store, key = _get_default_store(), f"ostinato/search/{next(_rounds)}"
    if dist.get_rank() == 0:
        store.set(key, json.dumps(_answer(section, paths, size)))
    else:
        _wait(store, key, section)
    answer = json.loads(store.get(key))
    if "error" in answer:
        raise OstinatoError(answer["error"])
    if not answer:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ostinato-") as folder:
        for name, packed in answer.items():
            (Path(folder) / name).write_bytes(zlib.decompress(b64decode(packed)))
        yield paths.model_copy(update={"plan": Path(folder) / PLAN, "placement": Path(folder) / PLACEMENT})


def _answer(section: Section, paths: Paths, size: Size) -> dict[str, str]:
    """What rank 0 tells the others: both files; why there are none; or nothing where there is no profile yet."""
    try:
        if section.auto and paths.profile is None:
            return _packed(paths.output) if _kept_plan(paths) else {}
        with tempfile.TemporaryDirectory() as temporary:
            folder = paths.output or Path(temporary)
            _search(section.search or Search(), paths.profile, size, folder)
            return _packed(folder)
    except (OSError, OstinatoError) as error:
        return {"error": str(error)}


def _kept_plan(paths: Paths) -> bool:
    """An earlier run has left a plan in "output"."""
    return paths.output is not None and all((paths.output / name).is_file() for name in (PLAN, PLACEMENT))


def _packed(folder: Path) -> dict[str, str]:
    return {name: b64encode(zlib.compress((folder / name).read_bytes())).decode() for name in (PLAN, PLACEMENT)}


def _search(search: Search, profile: Path, size: Size, folder: Path) -> None:
    """Writes plan.json and placement.toml into `folder`. Raises OstinatoError with what `ostinato plan` said."""
    if not profile.is_file():
        raise OstinatoError(f'"profile": {profile}: no such file; ostinato profile SCRIPT --output PROFILE makes one')
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ostinato", "plan", str(profile), "--json", *_options(search)]
    command += ["--devices", str(size.devices), "--all-devices", "--micro-batches", str(size.micro_batches)]
    command += ["--output", str(folder / PLAN), "--placement-output", str(folder / PLACEMENT)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode not in FOUND:
        raise OstinatoError(f'the search of the "ostinato" section found no plan: {done.stderr.strip()}')
    report = json.loads(done.stdout)
    print(f"ostinato: searched {report['seconds']:.1f} s: {report['chosen']}", flush=True)


def _options(search: Search) -> list[str]:
    """As `ostinato plan` takes them."""
    given = {"device_memory": _device_memory(), **search.model_dump(exclude_none=True)}
    flags = [f"--{key.replace('_', '-')}" for key in ("inference", "allow_incomplete") if given.pop(key)]
    words = ((f"--{key.replace('_', '-')}", str(value)) for key, value in given.items() if value is not None)
    return flags + [word for pair in words for word in pair]


def _device_memory() -> str | None:
    """Of this rank's accelerator; None on a processor, whose memory the ranks share."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    return None if accelerator.device_name() == "cpu" else f"{accelerator.total_memory()}B"


def _environment() -> dict[str, str]:
    """With this very ostinato first on the path, however it got there."""
    here = str(Path(sys.modules["ostinato"].__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))}


def _wait(store, key: str, section: Section) -> None:
    search = section.search or Search()
    limit = USUAL_LIMIT if search.time_limit is None else search.time_limit
    patience = timedelta(seconds=section.timeout_s + limit)
    try:
        store.wait([key], NO_LIMIT if limit == 0 else patience)
    except dist.DistError:
        raise OstinatoError(f"rank 0 has not found a plan within {patience.total_seconds():g} s") from None
