# SPDX-License-Identifier: Apache-2.0
"""What an engine knows of the plan that it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ostinato.nn import Shard
from ostinato.groups import Links
from ostinato.ranks.watch import Watch

from ..section import plans
from ..data.batches import Batches
from ..section.config import Paths, Section
from ..stages.copies import Copies
from .adapt import Adapt
from .evaluation import Forwards
from .first_step import FirstStep
from ..tell.gained import Gained
from ..tell.outside import Outside
from ..section.plans import Stage
from ..equal.random_numbers import RandomNumbers
from ..data.readers import Readers
from ..stages.sharding import Courier
from ..tell.step_memory import StepMemory
from ..data.step_plans import StepPlans
from ..tell.trace import Trace
from ..save.universal import ParameterPart

if TYPE_CHECKING:
    from ostinato._plugin import Executor, Program


@dataclass(repr=False)  # DeepSpeed prints all of an engine ("dump_state"), and some of this is made later
class Run:
    """The plan of one engine."""

    program: Program
    stages: list[Stage]  # all stages, in model order
    stock_parts: list[int]  # DeepSpeed's own partition of the model
    stock_names: (
        list[list[str]] | None
    )  # parameters of each pipeline rank in it; None where the plan's is the same
    section: Section
    paths: Paths
    shards: dict[int, Shard]  # this rank's place in sharded stages, by layer
    parts: list[ParameterPart]  # the parameters of which this rank holds a part
    copies: Copies | None = (
        None  # the weights that several ranks hold; None where the plan runs in one direction
    )
    idle: torch.nn.Parameter | None = None  # where this rank has nothing to train
    couriers: dict[tuple[int, str], Courier] = field(
        default_factory=dict
    )  # by stage and DeepSpeed's name of the buffer
    group: dist.ProcessGroup | None = None  # process group of this pipeline, for the executors alone
    links: Links = field(default_factory=dict)  # groups of two ranks for its transfers
    executor: Executor | None = None  # of training; None where the plan holds forwards only
    working: Executor | None = None  # the executor that runs, or has failed
    trace: Trace | None = None
    gained: Gained | None = None  # whether the plan is faster than what ran before; None: that is not known
    adapt: Adapt | None = None
    memory: StepMemory | None = None
    active: Stage | None = None  # the stage whose forward or backward runs
    batches_before: int = 0  # this step: of all steps and evaluations
    ended: dict[int, Any] = field(
        default_factory=dict
    )  # in a step: by batch, what DeepSpeed's forward pass has noted of its loss
    loading: bool = False  # a batch is being read
    first_step: FirstStep | None = None  # until it is over
    unsaid: list[str] | None = (
        None  # what step 1 has shown, which "check" says where it matters; None: say it
    )
    keeps_bits: bool = False  # losses are expected to be those of 1F1B bit for bit
    offered: Any = None  # the iterator that the script gave this rank, which reads no data; until step 1
    failed: str = ""  # what an error ended half-way, in words: ranks are out of step since
    norm_told: bool = False  # that get_global_grad_norm() rounds
    placement: str = ""  # its text, where steps have plans of their own
    measured: str = ""  # the profile that these plans follow; "": none
    steps: StepPlans | None = None  # which makes them
    items: deque[Any] = field(default_factory=deque)  # of this step, read to plan it
    rest: list[Any] = field(default_factory=list)  # DeepSpeed's instructions after the last backward
    # Made when the engine's __init__ is over (PlanEngine.ostinato_begin), in this order:
    random_numbers: RandomNumbers = field(init=False)
    readers: Readers = field(init=False)
    forwards: Forwards = field(init=False)  # of evaluation; gone when the engine is destroyed
    watch: Watch = field(init=False)
    outside: Outside = field(init=False)
    batches: Batches = field(init=False)  # of this step

    @property
    def trains(self) -> bool:
        return plans.trains(self.program)

    @property
    def plans_steps(self) -> bool:
        """Each has a plan of its own, for the sizes of its micro-batches."""
        return self.section.sizes is not None

    @property
    def ready(self) -> bool:
        """The engine's __init__ is over."""
        return self.group is not None
