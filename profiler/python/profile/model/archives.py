# SPDX-License-Identifier: Apache-2.0
"""Saved programs as jobs: an archive of torch.export, which has its example inputs with it, and a TorchScript
program, which has not.

profile_layers(load_exported(Path("model.pt2")))
profile_layers(load_script(Path("model.pt"), ["8x128:int64:50257"]))
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from ostinato.errors import Status
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.device import device_of_this_process
from ostinato.profile.model.job import Job
from ostinato.profile.model.made_up import sample_input
from ostinato.profile.settings import UNKNOWN_STATES

ONLY_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch reads it where it loads a pickle
EXPORTED, TORCHSCRIPT = ".pt2", (".pt", ".ts", ".pth")


def load_exported(path: Path) -> Job:
    """Its module, profiled operator by operator on its example inputs. Raises ProfileError."""
    check_there(path)
    try:
        with _only_tensors():
            program = torch.export.load(str(path))
    except Exception as error:
        raise ProfileError(
            f"{path}: torch.export.load() cannot load it without running pickled code: {error}"
        ) from error
    device = device_of_this_process()
    program = move_to_device_pass(program, device.place)  # with the tensors that its operators make
    inputs, named = program.example_inputs or ((), {})
    if not inputs and not named:
        raise ProfileError(f"{path}: export the program with example inputs, which it is measured on")
    return Job(
        module=program.module(),
        inputs=dict(enumerate(inputs)) | named if named else inputs,
        optimizer_numbers=UNKNOWN_STATES,
        name=path.stem,
        device=device,
    )


@contextmanager
def _only_tensors() -> Iterator[None]:
    """torch.export.load() tries pickles again, with all that they may call, where they hold more than tensors
    and containers."""
    before = os.environ.get(ONLY_TENSORS)
    os.environ[ONLY_TENSORS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ONLY_TENSORS]
        else:
            os.environ[ONLY_TENSORS] = before


def load_script(path: Path, inputs: Sequence[str], train: bool = True) -> Job:
    """A TorchScript program, profiled by its submodules and the operators beside them, on inputs as
    sample_input() reads them. `train`: it runs as in training (dropout, batch statistics). Raises
    ProfileError: what the file is instead."""
    check_there(path)
    if other := what_else(path):
        raise ProfileError(f"{path} {other}")
    if not inputs:
        raise ProfileError(
            f"{path} does not say what inputs it takes: give each, in order, as --input 8x128:int64:50257",
            Status.USAGE,
        )
    given = tuple(map(sample_input, inputs))
    try:
        program = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise ProfileError(
            f"{path} cannot be loaded as TorchScript: {str(error).partition(chr(10))[0]}"
        ) from error
    device = device_of_this_process()
    make_tensors_on(device.place, program)
    return Job(
        module=program.train(train),
        inputs=given,
        optimizer_numbers=UNKNOWN_STATES,
        name=path.stem,
        device=device,
    )


def make_tensors_on(place: torch.device, program: Any) -> None:
    """What its operators make: a trace names the device that it ran on."""
    for part in program.modules():
        for name in part._c._method_names():
            for node in part._c._get_method(name).graph.findAllNodes("prim::Constant"):
                if node.output().type().kind() == "DeviceObjType":
                    node.s_("value", str(place))


def check_there(path: Path) -> None:
    if path.is_dir():
        raise ProfileError(f"{path}: this is a folder; give a file")
    if not path.is_file():
        raise ProfileError(f"{path}: no such file")


def what_else(path: Path) -> str:
    """What a file is that torch.jit.load() cannot read; "": not known."""
    try:
        records = torch._C.PyTorchFileReader(str(path)).get_all_records()
    except RuntimeError:
        return "is not an archive of torch: save torch.jit.script(model)"
    if "constants.pkl" in records:
        return ""
    if any(
        part in record
        for record in records
        for part in ("archive_format", "serialized_exported_program", "models/")
    ):
        return f"is a torch.export archive: rename it to {EXPORTED} to profile it on its own inputs"
    if "data.pkl" in records:
        return "is a pickle from torch.save(), which needs its Python classes: save torch.jit.script(model) instead"
    return "is an archive without a TorchScript program"
