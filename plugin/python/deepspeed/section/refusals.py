# SPDX-License-Identifier: Apache-2.0
"""What cannot be combined with a plan, each refused by its name before step 1."""

import re
from typing import Any

from deepspeed.runtime.pipe import schedule
from ostinato.groups import everyones
from ostinato.restrictions import Restriction, is_deepspeeds, of_classes

from ostinato import _search

from ..errors import HAS_ENGINE, OstinatoError, Unsupported
from . import plans
from .config import Search, Section
from .refused_keys import check_keys
from ..upstream import Engine, Model

OLDEST = (0, 19, 7)  # before it, gradients were scaled wrongly where engine.backward() is bypassed
NEWEST = (0, 19, 8)  # that this version was tried with


def check_run(model: Model, config) -> None:
    """Raises Unsupported for the first feature of the run that a plan cannot keep. `config` is a
    DeepSpeedConfig."""
    import deepspeed

    if getattr(model, "has_engine", False):
        raise OstinatoError(HAS_ENGINE)
    _check_version(deepspeed.__version__)
    if any(
        kind.__name__ == "DualPipeVModule" for kind in type(model).__mro__
    ):  # DeepSpeed has it since 0.19.8
        raise Unsupported(
            "DualPipeVModule brings its own stages and schedule: give ostinato a PipelineModule"
        )
    check_keys(config._param_dict)
    stage = config.zero_config.stage
    if stage > 1:
        raise Unsupported(
            f'"zero_optimization": {{"stage": {stage}}} does not work with pipelines: use 0 or 1'
        )


def check_slices(model: Model) -> None:
    """Raises Unsupported where each step is to have its own plan, and ranks hold slices of layers."""
    if model.topology().get_dim("model") > 1:
        raise Unsupported(
            '"sizes" in the "ostinato" section does not work with tensor slicing (the "model" axis of the topology): each pipeline would plan its '
            "steps alone; leave it out"
        )


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


# Methods of PipelineEngine in whose place the executor runs, or PlanEngine's own.
REPLACED = (
    "_exec_schedule",
    "_exec_backward_pass",
    "_exec_send_activations",
    "_exec_recv_activations",
    "_exec_send_grads",
    "_exec_recv_grads",
)


def refuse_passes(engine: Any) -> None:
    """Of an engine, or its class. Raises Unsupported where a pass that the executor takes the place of is the
    script's own."""
    for name in REPLACED:
        if not is_deepspeeds(getattr(engine, name)):
            raise Unsupported(
                f"engine.{name}() is not DeepSpeed's own, and a plan runs backwards and transfers without it"
            )
    for command in (
        schedule.BackwardPass,
        schedule.SendActivation,
        schedule.RecvActivation,
        schedule.SendGrad,
        schedule.RecvGrad,
    ):
        if not is_deepspeeds(engine._INSTRUCTION_MAP[command]):
            raise Unsupported(
                f"engine._INSTRUCTION_MAP[{command.__name__}] is not DeepSpeed's own, and a plan does not call it"
            )


def restrictions_of(model: Model, engine: Any, section: Section) -> list[Restriction]:
    """What model, engine (or its class) and, where it has a plan searched, the section allow of a plan: the
    search obeys it, and check_allowed() holds every plan to it."""
    searches = section.searches and section.placement is None
    return of_classes(model, engine) + ((section.search or Search()).restrictions() if searches else [])


def check_allowed(program: Any, stages: list[plans.Stage], restrictions: list[Restriction]) -> None:
    """Raises Unsupported where the plan has what this run does not allow."""
    placed = [(list(stage.layers), list(stage.ranks)) for stage in stages]
    forbidden, option = _search.broken([one.row for one in restrictions], placed, plans.splits(program))
    if forbidden:
        ways = f"ostinato plan {option} makes one without; so does" if option else "one without comes from"
        raise Unsupported(f'the plan has {forbidden}: {ways} "auto", with "output" in another folder')


def refuse_uneven(engine: Engine) -> None:
    """ZeRO sums the norms of gradients over the ranks of a pipeline group by group, and DeepSpeed drops
    groups without parameters: where ranks have different numbers of them, the step would never end. All ranks
    must call it.
    """
    if not engine.zero_optimization():
        return
    counts = everyones(len(engine.optimizer.param_groups))
    if (fewest := min(counts)) < max(counts):
        raise OstinatoError(
            f"rank {counts.index(fewest)} has parameters of {fewest} of the optimizer's groups under this placement, and rank "
            f"{counts.index(max(counts))} of {max(counts)}: ZeRO sums norms group by group over all of them, and DeepSpeed would wait for ever. "
            "Use another placement, one group, or no ZeRO"
        )
