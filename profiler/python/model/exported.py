# SPDX-License-Identifier: Apache-2.0
"""A torch.export archive (.pt2) as a job: the archive has its example inputs with it."""

from __future__ import annotations

from pathlib import Path

import torch

from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.device import device_of_this_process
from ostinato.profile.model.job import Job

ARCHIVE, TORCHSCRIPT = ".pt2", (".pt", ".ts", ".pth")


def load_exported(path: Path) -> Job:
    """Its module, profiled operator by operator on its example inputs. Raises ProfileError."""
    if not path.is_file():
        raise ProfileError(f"{path}: no such file")
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        raise ProfileError(f"{path} cannot be loaded by torch.export.load(): {error}") from error
    inputs, named = program.example_inputs or ((), {})
    if not inputs and not named or inputs and named:
        raise ProfileError(f"{path}: export the program with example inputs that are all positional or all named")
    return Job(module=program.module(), inputs=named or inputs, name=path.stem, device=device_of_this_process())
