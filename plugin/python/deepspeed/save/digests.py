# SPDX-License-Identifier: Apache-2.0
"""Whether one save_checkpoint() has written all files of a checkpoint: a run that ends while it saves, or
mixed copies, leave files of several saves, which fit each other in everything but their contents.

    with noting(engine.checkpoint_engine) as written: ...       # DeepSpeed's save_checkpoint()
    checkpoint.finish(folder, gathered(written))                # "files" in ostinato.json
    refuse_torn(folder, optimizer=True)                         # before a checkpoint is loaded

torch.save() writes zip archives. Their directory has a checksum of each tensor and the save's random number: it
is read in a millisecond, and no tensor is.
"""

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ostinato.errors import printable, put
from ostinato.groups import everyones

from ..errors import OstinatoError
from . import checkpoint
from .seal import holds_sealed, replaced


def digest(path: Path) -> str:
    """Of the archive's directory; of another kind of file, of its size. Raises OSError."""
    if not zipfile.is_zipfile(path):
        return f"{path.stat().st_size}{SIZE}"
    with zipfile.ZipFile(path) as archive:
        held = sorted((entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist())
    return hashlib.sha256(repr(held).encode()).hexdigest()[:16]


@contextmanager
def noting(engine: Any) -> Iterator[list[Path]]:
    """Around what DeepSpeed's checkpoint engine saves: the files of this rank."""
    written: list[Path] = []
    save = engine.save

    def saving(state_dict, path, *args, **kwargs):
        written.append(Path(path))
        return save(state_dict, path, *args, **kwargs)

    with replaced(engine, "save", saving):
        yield written


def gathered(written: list[Path]) -> dict[str, str]:
    """By name, of the files of all ranks. All must call it."""
    everyone = everyones({path.name: digest(path) for path in written if path.is_file()})
    return {name: found for of_rank in everyone for name, found in of_rank.items()}


def wrong(folder: Path, files: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with each of these files, by digest."""
    for name, known in files.items():
        try:
            if (found := digest(folder / name)) == known:
                continue
            cut = found.endswith(SIZE) and not known.endswith(SIZE)
            yield f"{name} {CUT if cut else OTHER}"
        except FileNotFoundError:
            yield f"{name} is missing"
        except (OSError, zipfile.BadZipFile) as error:
            yield f"{name} cannot be read ({error})"


def refuse_torn(folder: Path | None, optimizer: bool) -> None:
    """All ranks must call it; each looks at a share of the files. Raises OstinatoError on every rank where one
    is missing, or of another save. `optimizer`: optimizer state is read; else ZeRO's files of it may be missing,
    and files may have changed, as after a merge or cast of their weights: rank 0 names them.
    """
    record = checkpoint.recorded(folder) if folder is not None and folder.is_dir() else None
    if record is None or "files" not in record:  # DeepSpeed alone, or its engine writes in the background
        return
    assert folder is not None
    if record["files"] is None:
        raise OstinatoError(f"{folder} is not complete: the run ended while it was saved. {INSTEAD}")
    files = sorted(of for of in record["files"].items() if optimizer or not of[0].endswith(ZERO))
    share = files[dist.get_rank() :: dist.get_world_size()]
    said = [one for of_rank in everyones([*wrong(folder, dict(share))]) for one in of_rank]
    if not said:
        return
    more = f", and {len(said) - 1} more" if len(said) > 1 else ""
    changed = all(one.endswith(OTHER) for one in said)
    if changed and not optimizer:
        if dist.get_rank() == 0:
            put(f"ostinato: {printable(f'{folder}: {said[0]}{more}: {CHANGED}')}")
        return
    if changed and len(said) == len(files) and not any(holds_sealed(folder / name) for name, _ in files):
        raise OstinatoError(f"{folder}{OVERWRITTEN}")
    if all(one.split()[0].endswith(ZERO) for one in said):
        raise OstinatoError(f"{folder}: {said[0]}{more}. {checkpoint.WEIGHTS}")
    raise OstinatoError(f"{folder}: {said[0]}{more}. {INSTEAD}{f'. {YOURSELF}' if changed else ''}")


ZERO = "_optim_states.pt"  # ends the names of files in which ZeRO's optimizer state is
SIZE = " B"  # ends the digest of a file that is no archive
CUT = "is not a torch.save() archive, or is truncated"
OTHER = f"belongs to another save than {checkpoint.NAME}"
OVERWRITTEN = (
    f" was saved under a plan, and DeepSpeed without ostinato has saved it again: delete {checkpoint.NAME} in it, which is about "
    "files that are no longer there"
)
CHANGED = "loaded as it is; if you have not changed it yourself, these weights are of several saves"
INSTEAD = "Load an earlier checkpoint: the weights in this one may be of several saves, too"
YOURSELF = (
    "If you have changed it yourself, load only the weights, as the optimizer's state belongs to those before: "
    "load_checkpoint(..., load_optimizer_states=False)"
)
