# SPDX-License-Identifier: Apache-2.0
"""What cannot be combined with a plan, each refused by its name before step 1."""

import re

from .errors import PLACED, OstinatoError, Unsupported
from .refused_keys import check_keys
from .upstream import Model

OLDEST = (0, 19, 7)  # before it, gradients were scaled wrongly where engine.backward() is bypassed
NEWEST = (0, 19, 8)  # that this version was tried with


def check_run(model: Model, config) -> None:
    """Raises Unsupported for the first feature of the run that a plan cannot keep. `config` is a DeepSpeedConfig."""
    import deepspeed

    if hasattr(model, "placed_in_order"):
        raise OstinatoError(PLACED)  # DeepSpeed's own schedule cannot run it either
    _check_version(deepspeed.__version__)
    if any(kind.__name__ == "DualPipeVModule" for kind in type(model).__mro__):  # DeepSpeed has it since 0.19.8
        raise Unsupported("DualPipeVModule brings its own stages and schedule: give ostinato a PipelineModule")
    check_keys(config._param_dict)
    for key in ("pipe_partitioned", "grad_partitioned"):
        if config.pipeline[key] and model.topology().get_dim("model") > 1:
            raise Unsupported(f'"pipeline": {{"{key}": true}} does not work with a plan: switch it off')
    stage = config.zero_config.stage
    if stage > 1:
        raise Unsupported(f'"zero_optimization": {{"stage": {stage}}} does not work with pipelines: use 0 or 1')
    if type(model).__name__ == "GPT2ModelPipe":
        raise Unsupported("GPT2ModelPipe's attention mask is sent by DeepSpeed in a way of its own: pass it to the layers")


def untried_version(version: str) -> str:
    """What is to be said of a DeepSpeed that is newer than those that were tried; empty where it is not."""
    if _numbers(version) <= NEWEST:
        return ""
    return (
        f"DeepSpeed {version} is newer than {_text(OLDEST)} to {_text(NEWEST)}, with which ostinato was tried: what it has changed since in "
        "its pipeline engine is not known here"
    )


def _check_version(version: str) -> None:
    if _numbers(version) < OLDEST:
        raise Unsupported(f"DeepSpeed {version} is too old: ostinato needs {_text(OLDEST)} or newer")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
