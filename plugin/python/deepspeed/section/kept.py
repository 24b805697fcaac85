# SPDX-License-Identifier: Apache-2.0
"""The plan that an earlier run with "auto" has left in "output", with the profile that it was searched with.

    if keeps_for(section, paths, size):                     # on rank 0, as everything here
        texts = texts_of_kept(section, paths)
    elif found := profile_for(section, paths, size):
        why, profile = found                                # search again, with an earlier run's measurements

A plan stays as long as model, ranks, micro-batches, the kind of GPU and the options of the search do. A plan for
another number of ranks is put aside, in "4-ranks", and comes back when a run has that number again; so does one for
another model, with its profile, in "model-3f2a91c0", as folders that lie beside a configuration file serve every model
that it trains.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from ostinato.core import Placement
from ostinato.errors import Error, counted
from ostinato.files import ADAPTED, BASE
from ostinato.profile.machine.device import device_at
from ostinato.restrictions import Restriction

from . import verdict
from .config import Paths, Search, Section
from ..errors import OstinatoError

FILES = PLAN, PLACEMENT = "plan.json", "placement.toml"
PROFILE = "profile.json"
LEFT = 'an earlier run left this plan in "output": delete {}, or choose another folder'
SIZES = "sizes.json"  # the profile for the plans of single steps, and the function that it was measured with


@dataclass(frozen=True)
class Size:
    """What a plan must fit: `devices` pipeline ranks, `micro_batches` per step (0: not known yet), the run's `restrictions`.
    `hosts`: (devices, cores) of each host in turn, where ranks share cores."""

    devices: int
    micro_batches: int
    hosts: tuple[tuple[int, int], ...] = ()
    restrictions: Sequence[Restriction] = ()


def has_kept(paths: Paths) -> bool:
    """Whether an earlier run has left a plan in "output"."""
    return paths.output is not None and all((paths.output / name).is_file() for name in FILES)


def keeps_for(section: Section, paths: Paths, size: Size) -> bool:
    """Whether the plan in "output" is for `size` and was searched with the section's options, or is for this
    many ranks and came without the profile that another one could be searched with. A plan that was put aside
    comes back."""
    if not has_kept(paths):
        return False
    assert paths.output is not None
    if (aside := _of_ranks(paths.output, size.devices)).is_dir() and put_aside(paths, size.devices):
        _move(aside, paths.output)
        with suppress(OSError):  # it holds more than the plan
            aside.rmdir()
    if _profile_of_kept(paths) is None:
        return _size_of_kept(paths)[0] == size.devices
    return not _differs(section, paths, size)


def _differs(section: Section, paths: Paths, size: Size) -> str:
    """How the plan in "output" is for something else, in words; "": it is not. `size` may leave micro-batches open."""
    assert paths.output is not None
    kept = _size_of_kept(paths)
    if kept[0] != size.devices or size.micro_batches not in (0, kept[1]):
        return f"is for {_in_words(*kept)}, not {_in_words(size.devices, size.micro_batches)}"
    options, then = (section.search or Search()).deciding(), verdict.options_of(paths.output / PLAN)
    changed = [json.dumps(name) for name in options if then is not None and options[name] != then.get(name)]
    return f"was searched with different options ({', '.join(changed)})" if changed else ""


def put_aside(paths: Paths, devices: int) -> bool:
    """Whether "output" has a plan for another number of ranks, which a later run with that number will find."""
    if not has_kept(paths) or (others := _size_of_kept(paths)[0]) == devices:
        return False
    assert paths.output is not None
    _move(paths.output, _of_ranks(paths.output, others))
    return True


def put_model_aside(output: Path, digest: str) -> Path:
    """The plan in "output" with its profile and those for other numbers of ranks, which a later run of the model that they
    are for will find; where they are then. `digest`: of that model; "" of a placement that was written by hand."""
    digest = digest or hashlib.sha256((output / PLACEMENT).read_bytes()).hexdigest()
    _move_all(output, aside := _of_model(output, digest))
    return aside


def bring_model_back(output: Path, digest: str) -> bool:
    """Undoes put_model_aside(); whether there was anything."""
    if not (aside := _of_model(output, digest)).is_dir():
        return False
    _move_all(aside, output)
    with suppress(OSError):  # it holds more than the plan
        aside.rmdir()
    return True


def _of_model(output: Path, digest: str) -> Path:
    return output / f"model-{digest[:8]}"


def _move_all(source: Path, target: Path) -> None:
    _move(source, target)
    with suppress(FileNotFoundError):
        (source / PROFILE).replace(target / PROFILE)
    for folder in (source / ADAPTED, *source.glob("*-ranks")):
        if folder.is_dir():
            shutil.rmtree(target / folder.name, ignore_errors=True)
            folder.rename(target / folder.name)


def paths_of_kept(paths: Paths) -> Paths:
    assert paths.output is not None
    plan, placement = (paths.output / name for name in FILES)
    return paths.model_copy(update={"plan": plan, "placement": placement})


def _of_ranks(output: Path, ranks: int) -> Path:
    return output / f"{ranks}-ranks"


def _move(source: Path, target: Path) -> None:
    """A plan, with what belongs to it."""
    target.mkdir(exist_ok=True)
    for name in (*FILES, SIZES, *verdict.BESIDE):
        (target / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            (source / name).rename(target / name)


def _size_of_kept(paths: Paths) -> tuple[int, int]:
    """Pipeline ranks and micro-batches of the plan in "output"."""
    assert paths.output is not None
    try:
        devices = len(Placement.from_file(paths.output / PLACEMENT).devices)
        return devices, int(json.loads((paths.output / PLAN).read_text())["micro_batches"])
    except Error as error:
        raise OstinatoError(f'"output": {error}') from None
    except (ValueError, TypeError, LookupError):
        raise OstinatoError(f'"output": {paths.output / PLAN} is not a plan') from None


def verdict_on_kept(section: Section, paths: Paths, size: Size) -> tuple[str, str] | None:
    """Why no run is to use the plan in "output", and what it does instead (verdict)."""
    return verdict_of(section, paths) if keeps_for(section, paths, size) else None


def verdict_of(section: Section, paths: Paths) -> tuple[str, str] | None:
    """The same of a plan that keeps_for() has found."""
    assert paths.output is not None
    then, here = _gpu_of_profile(paths), gpu()
    if then and here and then != here:
        return verdict.MEASURE, f"it was measured on {then}, this is {here}"
    if section.require and (unlike := verdict.unlike_1f1b(paths.output / PLAN)):
        return verdict.MEASURE, unlike
    return verdict.found(paths.output / PLAN) if section.falls_back else None


def gpu() -> str:
    """The kind of this rank's GPU; "" on a CPU: hosts of one cluster may have different ones."""
    from deepspeed.accelerator import get_accelerator

    place = torch.device(get_accelerator().current_device_name())
    return "" if place.type == "cpu" else device_at(place).kind


def _gpu_of_profile(paths: Paths) -> str:
    """That was measured; "": not known, or none."""
    if (path := _profile_of_kept(paths)) is not None:
        with suppress(OSError, ValueError, LookupError, TypeError):
            profile = json.loads(path.read_text())
            return str(profile["device"]["name"]) if profile["timer"] != "cpu" else ""
    return ""


def profile_for(section: Section, paths: Paths, size: Size) -> tuple[str, Path] | None:
    """Where the plan in "output" is for something else: what, in words, and the profile of the run that left it."""
    if not has_kept(paths) or not (why := _differs(section, paths, size)):
        return None
    if _gpu_of_profile(paths) not in ("", gpu()):
        return None
    profile = _profile_of_kept(paths)
    return None if profile is None else (why, profile)


def _in_words(devices: int, micro_batches: int) -> str:
    return f"{counted(devices, 'rank')} and {counted(micro_batches, 'micro-batch')} a step"


def _profile_of_kept(paths: Paths) -> Path | None:
    assert paths.output is not None
    return next(
        (path for path in (paths.output / ADAPTED / BASE, paths.output / PROFILE) if path.is_file()), None
    )


def stages_of_run(paths: Paths) -> list[int]:
    """How many layers each stage of DeepSpeed's partition had when the plan in "output" was found; []: not
    known."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        assert paths.output is not None
        return list(json.loads((paths.output / PROFILE).read_text())["run"]["layers"])
    return []


def texts_of_kept(section: Section, paths: Paths) -> dict[str, str]:
    """The texts of the plan's files, by name."""
    assert paths.output is not None
    return {name: (paths.output / name).read_text() for name in FILES} | _costs(section, paths.output)


def _costs(section: Section, kept: Path) -> dict[str, str]:
    """The profile that an earlier run with "auto" has left beside its plan."""
    if section.sizes is None or not (kept / SIZES).is_file():
        return {}
    try:
        text = (kept / SIZES).read_text()
        function = json.loads(text)["function"]
    except (ValueError, TypeError, LookupError):
        raise OstinatoError(f'"output": {kept / SIZES} is not what a run with "sizes" leaves there') from None
    if function != section.sizes:
        raise OstinatoError(
            f'"output": {kept / SIZES} was measured with "sizes": "{function}", but this run has "{section.sizes}": choose another folder'
        )
    return {SIZES: text}
