# SPDX-License-Identifier: Apache-2.0
"""What does not work with a plan: each is refused by name before step 1."""

import re
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe import schedule
from ostinato.groups import everyones
from ostinato.nn.lanes import computed_beside
from ostinato.restrictions import Restriction, is_deepspeeds, of_classes

from ostinato import _search, offload

from ..errors import HAS_ENGINE, OstinatoError, Unsupported
from . import MADE, plans
from .config import Search, Section
from .refused_keys import check_keys
from ..upstream import Model

OLDEST = (0, 19, 4)
NEWEST = (0, 19, 8)  # with which this version was tried


def check_run(model: Model, config) -> None:
    """Raises Unsupported for the first feature of the run that does not work with a plan. `config` is a
    DeepSpeedConfig."""
    import deepspeed

    if getattr(model, "has_engine", False):
        raise OstinatoError(HAS_ENGINE)
    _check_version(deepspeed.__version__)
    # DeepSpeed has it since 0.19.8.
    if any(kind.__name__ == "DualPipeVModule" for kind in type(model).__mro__):
        raise Unsupported("DualPipeVModule has its own stages and schedule: use a PipelineModule")
    if not hasattr(model, MADE):
        raise Unsupported(
            f"PipelineModule.__init__() did not make this {type(model).__name__}, or did before ostinato was imported: a plan lays out layers there"
        )
    check_keys(config._param_dict)
    stage = config.zero_config.stage
    if stage > 1:
        raise Unsupported(
            f'"zero_optimization": {{"stage": {stage}}} does not work with pipelines: use 0 or 1'
        )


def check_slices(model: Model) -> None:
    """Raises Unsupported where each step gets its own plan and ranks hold slices of layers."""
    if model.topology().get_dim("model") > 1:
        raise Unsupported(
            '"sizes" in the "ostinato" section does not work with tensor slicing (the "model" axis of the topology), because each pipeline would '
            "plan its steps by itself: remove it"
        )


def untried_version(version: str) -> str:
    """What to say of a DeepSpeed that is newer than those that were tried; "" where it is not."""
    if _numbers(version) <= NEWEST:
        return ""
    return (
        f"DeepSpeed {version} was not tried: this ostinato was tried with {_text(OLDEST)} to {_text(NEWEST)}, and does not know later changes "
        "to the pipeline engine"
    )


def _check_version(version: str) -> None:
    if _numbers(version) < OLDEST:
        raise Unsupported(
            f"DeepSpeed {version} is too old: ostinato needs {_text(OLDEST)} or newer. (Before 0.19.3, tried from 0.16.9 on, pipelines do not divide "
            "gradients by gradient_accumulation_steps, or divide those of early stages more than once.)"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# Methods of PipelineEngine that the executor, or PlanEngine, replaces.
REPLACED = (
    "_exec_schedule",
    "_exec_backward_pass",
    "_exec_send_activations",
    "_exec_recv_activations",
    "_exec_send_grads",
    "_exec_recv_grads",
)


# DeepSpeed's instructions that the executor replaces: it does not call what they map to.
UNCALLED = (
    schedule.BackwardPass,
    schedule.SendActivation,
    schedule.RecvActivation,
    schedule.SendGrad,
    schedule.RecvGrad,
)

# What the executor runs instead of DeepSpeed; the rest of a training schedule (reductions, the step) stays
# with DeepSpeed.
EXECUTED = (schedule.LoadMicroBatch, schedule.ForwardPass, *UNCALLED)

_read: set[tuple[type, bool]] = set()  # schedules that the script has made, and whether they evaluate


def refuse_passes(engine: Any) -> None:
    """`engine`: an engine, or its class. Raises Unsupported where the script has its own version of a pass
    that the executor replaces."""
    if why := own_pass(engine):
        raise Unsupported(why)


def own_pass(engine: Any) -> str:
    """Why refuse_passes() refuses the engine; "" if it does not."""
    for name in REPLACED:
        if not is_deepspeeds(getattr(engine, name)):
            return f"engine.{name}() is not DeepSpeed's own, but a plan runs backwards and transfers without calling it"
    for command in UNCALLED:
        if not is_deepspeeds(engine._INSTRUCTION_MAP[command]):
            return f"engine._INSTRUCTION_MAP[{command.__name__}] is not DeepSpeed's own, but a plan does not call it"
    return ""


def evaluates(pipe_schedule: Any) -> bool:
    """Whether the schedule has no backwards. Raises Unsupported where a schedule of the script's has instructions of
    the script's between DeepSpeed's: they would run after all passes. All ranks must call it.
    """
    kind = type(pipe_schedule)
    if is_deepspeeds(kind):
        return isinstance(pipe_schedule, schedule.InferenceSchedule)
    commands = [command for commands in pipe_schedule for command in commands]
    forwards_only = not any(isinstance(command, schedule.BackwardPass) for command in commands)
    if (kind, forwards_only) not in _read:
        _refuse_strange(kind, commands)
        _read.add((kind, forwards_only))
    return forwards_only


def _refuse_strange(kind: type, commands: list[Any]) -> None:
    last = max((i for i, command in enumerate(commands) if isinstance(command, EXECUTED)), default=-1)
    strange = [type(command).__name__ for command in commands[: last + 1] if not is_deepspeeds(type(command))]
    if found := next(filter(None, everyones("".join(strange[:1]))), ""):
        raise Unsupported(
            f"{kind.__name__} has the instruction {found} between DeepSpeed's own, which a plan would not run there"
        )


def restrictions_of(model: Model, engine: Any, section: Section) -> list[Restriction]:
    """What model, engine (or its class) and, if it asks for a search, the section allow in a plan: the search
    obeys these restrictions, and check_allowed() checks every plan against them."""
    searches = section.searches and section.placement is None
    return of_classes(model, engine) + ((section.search or Search()).restrictions() if searches else [])


def check_allowed(program: Any, stages: list[plans.Stage], restrictions: list[Restriction]) -> None:
    """Raises Unsupported where the plan has something that this run does not allow."""
    if not restrictions:  # as in nearly every step
        return
    placed = [(list(stage.layers), list(stage.ranks)) for stage in stages]
    forbidden, option = _search.broken(
        [one.row for one in restrictions], placed, program.ranks, plans.splits(program)
    )
    if forbidden:
        ways = f"make one without, with ostinato plan {option}, or" if option else "make one without,"
        raise Unsupported(f'the plan has {forbidden}: {ways} with "auto" and a new folder as "output"')


def check_trained(model: Model, stages: list[plans.Stage], program: Any) -> None:
    """Raises Unsupported where a plan that trains has no backward of a stage that learns. All ranks must call it."""
    alone = [stage for stage in stages if not program.stages[stage.index].has_backward]
    if not alone or not plans.trains(program):
        return
    learning = [s for s in alone if s.on(model.stage_id) and model.learns(s)]  # type: ignore[operator]  # it has been placed
    for stage in filter(None, everyones(learning[0] if learning else None)):
        raise Unsupported(
            f'stage "{program.stages[stage.index].name}" has trainable parameters, but no backward in the plan: give it a backward block in the '
            "placement and search again, or freeze them (requires_grad_(False))"
        )


def check_lanes(model: Model, stages: list[plans.Stage], program: Any) -> None:
    """Raises Unsupported where a stage on a lane, which runs in a thread beside what DeepSpeed's engine knows of,
    is more than layers without parameters, or its rank would exchange at the same time. All ranks must call it."""
    beside = [stage for stage in stages if stage.lane]
    if not beside:
        return
    if at_once := computed_beside(program.stages, model._layer_specs):
        raise Unsupported(at_once)
    wrong = [
        f"layer {', '.join(map(str, stage.layers))} on lane {stage.lane} {what}"
        for stage in beside
        for what, holds in (
            ("would read the batch", stage.reads),
            ("would compute the loss", stage.ends),
            ("would be sharded", stage.sharded),
            ("would recompute", stage.recomputes),
            ("has parameters", stage.on(model.stage_id) and model.learns(stage)),  # type: ignore[operator]  # it has been placed
        )
        if holds
    ]
    for said in everyones(wrong):
        if said:
            raise Unsupported(
                f"{said[0]}: only layers that exchange or copy what they are given may be on a lane"
            )


def check_offloads(program: Any) -> None:
    """Raises Unsupported where the plan offloads stages, and ranks compute in the host's memory."""
    try:
        offload.check(program, torch.device(get_accelerator().current_device_name()))
    except offload.NeedsAccelerator as error:
        raise Unsupported(str(error)) from None
