# SPDX-License-Identifier: Apache-2.0
"""An executor that is given another program between two steps: of one rank, so that no group is needed."""

import json

import pytest
import torch
from ostinato import _plugin
from support.plans import Layout, placement_text

from ostinato import Placement, search, search_sizes

ONE = Layout("one", (1,), (0, 0))
TEXT = placement_text(ONE, 2).replace("memory = 2", "memory = 0").replace("memory = -2", "memory = 0")


def program(sizes, text=TEXT, **options):
    """The program of a plan for these sizes, and in which order it runs the blocks of the first stage's
    forward."""
    plan = search_sizes(Placement.from_text(text), sizes, size=10, **options)
    return _plugin.StepPlacement(text).lower(plan.text)


def forwards(made) -> list[int]:
    return [i.micro_batch for i in made.instructions(0) if i.action == "F" and i.stage == 0]


class Stages:
    """What ran: (stage, micro-batch) of the forwards; the loss is the square of the weight times the
    micro-batch's number."""

    def __init__(self):
        self.weight, self.ran = torch.nn.Parameter(torch.tensor(3.0)), []

    def first(self, micro_batch, _inputs):
        self.ran.append((0, micro_batch))
        return self.weight * (micro_batch + 1)

    def second(self, micro_batch, inputs):
        self.ran.append((1, micro_batch))
        return inputs[0] ** 2


def executor_of(made, stages, **options):
    executor = _plugin.Executor(made, 0, None, [0], **options)
    executor.set_stage(0, stages.first)
    executor.set_stage(1, stages.second)
    return executor


def reordered():
    """A program of three micro-batches that are alike, the last one first."""
    plan = json.loads(search_sizes(Placement.from_text(TEXT), [5, 5, 5], size=5).text)
    for step in plan["schedule"]:
        step["micro_batch"] = 2 - step["micro_batch"]
    return _plugin.StepPlacement(TEXT).lower(json.dumps(plan))


def test_the_next_step_runs_the_next_program():
    stages = Stages()
    first = _plugin.StepPlacement(TEXT).lower(search(Placement.from_text(TEXT), micro_batches=3).text)
    executor = executor_of(first, stages, programs_change=True)
    executor.run()
    assert [m for stage, m in stages.ran if stage == 0] == forwards(first)
    gradient, stages.weight.grad, stages.ran = stages.weight.grad.clone(), None, []
    other = reordered()
    executor.set_program(other)
    executor.run()
    assert [m for stage, m in stages.ran if stage == 0] == forwards(other) != forwards(first)
    assert torch.equal(stages.weight.grad, gradient) and gradient == 2 * 3 * (1 + 4 + 9)
    assert len(executor.records()) == len(other.instructions(0))


def test_other_stages_and_other_micro_batches_are_refused_and_the_last_program_stays():
    stages = Stages()
    executor = executor_of(program([5, 5, 5]), stages, programs_change=True)
    for other in (program([5, 5]), program([5, 5, 5], placement_text(Layout("two", (1, 2), (0, 0, 0)), 3))):
        with pytest.raises(_plugin.ExecutionError, match="must have the stages, transfers and micro-batches"):
            executor.set_program(other)
    executor.run()
    assert len(stages.ran) == 6


def test_an_executor_says_before_that_its_programs_change():
    executor = executor_of(program([5, 5]), Stages())
    with pytest.raises(ValueError, match="programs_change=True"):
        executor.set_program(program([5, 5]))


def test_plans_that_do_not_hold_are_not_lowered():
    plan = search_sizes(Placement.from_text(TEXT), [3, 9], size=10).text
    steps = _plugin.StepPlacement(TEXT, "mine.toml")
    with pytest.raises(ValueError, match="the plan of a step"):
        steps.lower(plan[: len(plan) // 2])
    moved = plan.replace('"makespan": ', '"makespan": 1')
    with pytest.raises(ValueError, match="the plan of a step"):
        steps.lower(moved)
    with pytest.raises(ValueError, match="mine.toml:1"):
        _plugin.StepPlacement("format = 1", "mine.toml")
