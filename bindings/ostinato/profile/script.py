"""Runs a training script up to its first training step, and takes the model and one micro-batch from it.

The script is run unchanged, in this process, as the only rank. `PipelineModule` keeps its layer list and builds
nothing, `deepspeed.initialize` returns a stand-in for the engine, and the stand-in's `train_batch` ends the script.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato.profile.device import Cpu, device_of_this_process
from ostinato.profile.engine import Captured, StandInEngine
from ostinato.profile.errors import BAD_INPUT, MISSING, ProfileError
from ostinato.profile.job import Job
from ostinato.profile.settings import micro_batch_size


def layer_keeper(original: Callable) -> Callable:
    """Stands in for PipelineModule.__init__. Builds nothing: the model may be larger than this machine."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def keep_layers(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        nn.Module.__init__(self)
        self._layer_specs = list(given.arguments["layers"])
        self.loss_fn = given.arguments["loss_fn"]
        self.activation_checkpoint_interval = given.arguments["activation_checkpoint_interval"]
        self.num_stages = 1
        self.placeholder = nn.Parameter(torch.zeros(1))  # an optimizer refuses an empty list

    return keep_layers


def read_config(config: Any, args: Any) -> dict:
    """The dict, or the file that it names. `args.deepspeed_config` where no config was given."""
    if config is None:
        config = getattr(args, "deepspeed_config", None)
    if config is None:
        raise ProfileError("deepspeed.initialize() was given no configuration (config=, or args.deepspeed_config)")
    if isinstance(config, dict):
        return config
    try:
        return json.loads(Path(config).read_text())
    except (OSError, ValueError) as error:
        raise ProfileError(f"{config}: {error}") from error


def initialize(
    args: Any = None, model: Any = None, optimizer: Any = None, training_data: Any = None, collate_fn: Any = None,
    config: Any = None, config_params: Any = None, **_others: Any,
) -> tuple[StandInEngine, Any, Any, None]:  # fmt: skip
    """Stands in for deepspeed.initialize()."""
    if not isinstance(model, nn.Module):
        raise ProfileError(f"deepspeed.initialize() was given a {type(model).__name__} as its model: give an nn.Module")
    settings = read_config(config if config is not None else config_params, args)
    data = None
    if training_data is not None:
        size = micro_batch_size(settings) or 1
        data = torch.utils.data.DataLoader(training_data, batch_size=size, collate_fn=collate_fn)
    own = optimizer if not callable(optimizer) else None
    engine = StandInEngine(model, settings, own, data, device_of_this_process().place)
    return engine, optimizer, data, None


@contextmanager
def intercepted() -> Iterator[None]:
    """DeepSpeed with stand-ins, until the block ends."""
    try:
        import deepspeed
        from deepspeed.ops import __compatible_ops__ as operators
        from deepspeed.pipe import PipelineModule
    except ImportError as error:
        raise ProfileError(f"DeepSpeed is needed to run a training script: {error}", MISSING) from error
    original = deepspeed.initialize, PipelineModule.__init__, dict(operators)
    deepspeed.initialize, PipelineModule.__init__ = initialize, layer_keeper(PipelineModule.__init__)
    operators["deepspeed_shm_comm"] = False  # else init_distributed() compiles it, for a minute; one rank needs none
    try:
        yield
    finally:
        deepspeed.initialize, PipelineModule.__init__ = original[:2]
        operators.update(original[2])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def become_only_rank(device: Any) -> None:
    """For the script: a launcher's other ranks have ended by now, or profile another kind of device by themselves."""
    if isinstance(device, Cpu):
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # torchrun's store knows nothing of this world of one
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK=str(device.place.index or 0), LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )  # fmt: skip


@contextmanager
def as_main(script: Path, arguments: list[str]) -> Iterator[None]:
    """sys.argv and sys.path as `python script arguments...` has them."""
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def script_error(script: Path, error: Exception) -> ProfileError:
    """The script's own traceback goes to standard error, below the frames of this package."""
    traceback.print_exception(error)
    return ProfileError(f"{script} raised {type(error).__name__} before its first training step: {error}")


def capture(script: Path, arguments: list[str]) -> Job:
    """Runs the script until its first training step."""
    if not script.is_file():
        raise ProfileError(f"{script}: no such file")
    device = device_of_this_process()
    become_only_rank(device)
    try:
        with intercepted(), as_main(script, arguments):
            runpy.run_path(str(script), run_name="__main__")
    except Captured as captured:
        captured.job.name, captured.job.device = script.stem, device
        return captured.job
    except SystemExit as ended:
        if ended.code not in (None, 0):
            code = ended.code if isinstance(ended.code, int) else BAD_INPUT
            raise ProfileError(f"{script} ended with {ended.code!r} before its first training step", code) from ended
    except ProfileError:
        raise
    except Exception as error:
        raise script_error(script, error) from error
    raise ProfileError(f"{script} ended without a training step of DeepSpeed's engine: there is nothing to profile")
