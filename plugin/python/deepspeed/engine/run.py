# SPDX-License-Identifier: Apache-2.0
"""What an engine knows of the plan that it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.groups import Links, everyones
from ostinato.offload import Offloaded
from ostinato.ranks.watch import Watch

from ..section import plans, verdict
from ..section.agreement import versions
from ..data.batches import Batches
from ..section.config import Paths, Section
from ..stages.copies import Copies
from ..stages.tied_sums import TiedSums
from .adapt import Adapt
from .evaluation import Forwards
from .first_step import FirstStep
from .learning_rates import Dropped
from .thawed import Thawed
from ..tell.announce import is_exact
from ..tell.drift import Drift
from ..tell.speedup import Speedup
from ..tell.outside import Outside
from ..section.plans import Stage
from ..section.kept import PLAN
from ..equal.compared_steps import ComparedSteps
from ..equal.comparison import Comparison
from ..equal.random_numbers import RandomNumbers
from ..place.tied import Holders
from ..data.same_data import SameData
from ..stages.sharding import Courier
from ..tell.step_memory import StepMemory
from ..data.step_plans import StepPlans
from ..tell.trace import Trace
from ..save.universal import ParameterPart

if TYPE_CHECKING:
    from ostinato._plugin import Executor, Program


@dataclass(repr=False)
class StepState:
    """What one step or evaluation changes. Between them it is empty."""

    batches: Batches = field(init=False)
    read_ahead: deque[Any] = field(default_factory=deque)  # items of this step that were read to plan it
    reading: bool = False  # a batch is being read
    active: Stage | None = None  # the stage whose forward or backward runs
    losses: dict[int, Any] = field(default_factory=dict)  # that DeepSpeed's forward pass has noted, by batch


@dataclass(repr=False)  # DeepSpeed prints all of an engine ("dump_state"), and some of this is made later
class Run:
    """The plan of one engine."""

    # ---- what was asked for
    section: Section
    paths: Paths
    placement: str  # its text, where plans are searched for it
    profile: str  # that plans of single steps follow, as text; "": none

    # ---- the plan, and where it puts the model
    program: Program
    stages: list[Stage]  # all stages, in model order
    stock_parts: list[int]  # DeepSpeed's own partition of the model
    # Parameters of each pipeline rank in it; None where the plan has the same partition.
    stock_names: list[list[str]] | None
    shards: dict[int, Shard]  # this rank's place in sharded stages, by layer
    holders: Holders  # of the model's parameters in DeepSpeed's partition
    parameter_parts: list[ParameterPart]  # the parameters that this rank holds in part
    copies: Copies | None  # weights that several ranks hold; None where the plan runs in one direction
    idle: torch.nn.Parameter | None  # where this rank has nothing to train
    configuration: str  # DeepSpeed's, with how the model recomputes, as a digest
    tied_sums: TiedSums | None = None  # where stages of this rank add up gradients of tied layers apart
    dropped_groups: Dropped = field(default_factory=list)  # of the optimizer, which a schedule was made over
    programs: dict[int, Program] = field(default_factory=dict)  # for numbers of micro-batches, once asked for
    step_plans: StepPlans | None = None  # makes a plan for each step

    # ---- what runs it
    group: dist.ProcessGroup | None = None  # process group of this pipeline, for the executors alone
    links: Links = field(default_factory=dict)  # groups of two ranks for its transfers
    # By stage and DeepSpeed's name of the buffer.
    couriers: dict[tuple[int, str], Courier] = field(default_factory=dict)
    executor: Executor | None = None  # of training; None where the plan holds forwards only
    thawed: Thawed = field(init=False)  # since it was made
    running: Executor | None = None  # the executor that runs, or has failed
    after_plan: list[Any] = field(default_factory=list)  # DeepSpeed's instructions after the last backward
    step: StepState = field(default_factory=StepState)
    batches_before: int = 0  # of all steps and evaluations before this one
    evaluations: int = 0  # that the script has begun
    lost: str = ""  # which rank has given up, and why
    failed: str = ""  # what an error ended half-way, in words: ranks have been out of step since

    # ---- what follows it, and tells of it
    first_step: FirstStep | None = None  # until it is over
    compared: ComparedSteps | None = None  # "check"
    # Given by the script to this rank, which reads no data; until step 1.
    unread_iterator: Any = None
    trace: Trace | None = None
    memory: StepMemory | None = None
    speedup: Speedup | None = None  # compares the plan with what ran before; None: nothing to compare with
    adapt: Adapt | None = None
    drift: Drift | None = None  # where there is no `adapt`
    expected_losses: Callable[[], str] = field(init=False)  # what the program's design says of losses
    losses_said: str = ""  # the last of it that rank 0 has said
    was_equal: bool = False  # an earlier start has measured that this plan keeps the bits of 1F1B
    offloaded: dict[int, Offloaded] = field(default_factory=dict)  # by stage
    told_of_norm: bool = False  # said that get_global_grad_norm() rounds
    told_of_clipping: bool = False  # said that the script's clip_fp32_gradients() is not called

    # ---- made after the engine's __init__ (PlanEngine.ostinato_begin), in this order
    random_numbers: RandomNumbers = field(init=False)
    same_data: SameData = field(init=False)
    forwards: Forwards = field(init=False)  # of evaluation; gone when the engine is destroyed
    watch: Watch = field(init=False)
    outside: Outside = field(init=False)

    @property
    def trains(self) -> bool:
        return plans.trains(self.program)

    @property
    def compared_under(self) -> dict[str, Any]:
        """What a comparison with 1F1B depends on, besides the code of model and script."""
        plan, parts = self.program.plan_sha256, [int(part) for part in self.stock_parts]
        return {
            "plan_sha256": plan,
            "expected": self.losses_said,
            "partition": parts,
            "configuration": self.configuration,
            "versions": versions(),
        }

    def leave_check(self, told: Comparison) -> None:
        """For later starts with this plan, on rank 0."""
        if self.paths.output is None or dist.get_rank() > 0:
            return
        if not told.steps:
            return verdict.withdraw_unchecked(self.paths.output / PLAN, self.program.plan_sha256)
        check = verdict.Check(self.compared_under, told.sentence(), told.equal, told.within_rounding)
        verdict.leave_check(self.paths.output / PLAN, check)

    def check_before(self) -> verdict.Check | None:
        """What an earlier start has measured of this plan. All ranks must call it."""
        found, output = None, self.paths.output
        if output is not None and dist.get_rank() == 0:
            found = verdict.check_of(output / PLAN, self.compared_under)
        return everyones(found)[0]

    @property
    def keeps_bits(self) -> bool:
        """Whether the same losses as under 1F1B are expected, bit for bit."""
        return is_exact(self.losses_said)

    @property
    def plans_steps(self) -> bool:
        """Whether each step gets its own plan, for the sizes of its micro-batches."""
        return self.section.sizes is not None

    @property
    def ready(self) -> bool:
        """Whether the engine's __init__ has run."""
        return self.group is not None
