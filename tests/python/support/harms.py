# SPDX-License-Identifier: Apache-2.0
"""What goes wrong inside one rank of a training (fault_jobs), at one instant.

    harm = draw(Random(7), "raises", "forward", Layout("wave", CUTS, (0, 1, 1, 0)), 20, 4)
    suffers = Suffering(harm, rank)
    engine = make_engine(suffers.options(options))
    suffers.arm(engine)
    data = suffers.around(data)
    with suffers.during(step):
        engine.train_batch(data)
    suffers.at("script", step)

It happens while a layer's forward or backward runs, while data are read, in the loss, in the optimizer, in
the script's own lines between steps, or as a checkpoint begins.
"""

import json
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import torch

from . import models
from .plans import Layout
from .training import MICRO_BATCHES, Options

CUTS = (2, 4, 6)
LATE_S = 20.0
# Of the section: where a rank goes, and where none does and the machine may be busy.
TIMEOUT_S, PATIENT_S = 3.0, 240.0
PLACES = {
    "raises": ("forward", "backward", "loader", "loss", "optimizer", "script"),
    "memory": ("forward", "backward"),
    "disk": ("checkpoint",),
    "nan": ("forward", "loss"),
    "late": ("forward", "backward", "loader", "loss", "optimizer", "script"),
    "differs": ("plan", "options", "version", "micro_batches", "zero_stage"),
}
HARMED = (1, 3, 5, 6)  # layers, one of each stage between CUTS


@dataclass(frozen=True)
class Harm:
    what: str  # in PLACES
    where: str
    rank: int
    layer: int = -1  # of a forward or a backward: one of `rank`'s, which has it wherever it is
    step: int = -1
    micro_batch: int = 0
    limit: int = 0  # bytes of a file, where the disk is full
    given: str = ""  # another plan
    timeout_s: float = TIMEOUT_S

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def in_words(self) -> str:
        when = "at the start" if self.step < 0 else f"step {self.step + 1}, micro-batch {self.micro_batch}"
        return f"{self.what} in {self.where}, {when}"


def draw(random: Random, what: str, where: str, layout: Layout, steps: int, saved_every: int) -> Harm:
    """At any instant of a training of so many steps."""
    ranks = 1 + max(layout.ranks)
    step, layer = random.randrange(1, steps), random.choice(HARMED)
    rank = random.randrange(ranks)
    if where in ("forward", "backward"):
        rank = layout.ranks[[layer < cut for cut in (*CUTS, models.LAYERS)].index(True)]
    elif where == "loader":
        rank = random.choice([layout.ranks[0], layout.ranks[-1]])
    elif where == "loss":
        rank = layout.ranks[-1]
    elif where == "checkpoint":
        step = random.randrange(saved_every - 1, steps, saved_every)
    elif what == "differs":
        step = -1
    timeout_s = PATIENT_S if what in ("late", "nan") else TIMEOUT_S
    return Harm(
        what,
        where,
        rank,
        layer,
        step,
        random.randrange(MICRO_BATCHES),
        random.randrange(1, 1000),
        timeout_s=timeout_s,
    )


NO_HARM = Harm("", "", -1)  # but from outside
CALM = replace(NO_HARM, timeout_s=PATIENT_S)


class Suffering:
    """A harm in this process, on rank `me`. Made before the engine, in every rank: the model stays the same
    on all of them."""

    def __init__(self, harm: Harm, me: int):
        self._harm, self._mine = harm, me == harm.rank
        self._layer: torch.nn.Module | None = None  # this rank has it
        self._step, self._passed = -1, 0  # instants of its kind, in this step
        if harm.where in ("forward", "backward"):
            for kind in (models.Block, models.Join):
                kind.forward = self._around_forward(kind.forward)
        if harm.where == "loss":
            models.loss = self._around_loss(models.loss)
        if harm.what == "late":
            from ostinato.deepspeed.engine import engine

            engine.late_after = lambda _: LATE_S / 2

    def options(self, options: Options) -> Options:
        """What this rank makes its engine with."""
        if self._harm.what != "differs" or not self._mine:
            return options
        section, config = dict(options.section), dict(options.config)
        if self._harm.where == "plan":
            section["plan"] = self._harm.given
        elif self._harm.where == "options":
            section["timeout_s"] += 1
        elif self._harm.where == "version":
            from ostinato.deepspeed.place import placing

            placing.versions = lambda: "another version"
        elif self._harm.where == "micro_batches":
            config["gradient_accumulation_steps"] = 2 * MICRO_BATCHES
        elif self._harm.where == "zero_stage":
            config["zero_optimization"] = {"stage": 0}
        return replace(options, section=section, config=config)

    def arm(self, engine) -> None:
        self._layer = dict(engine.module.named_modules()).get(str(self._harm.layer))
        if self._harm.where == "optimizer" and self._mine:
            engine.optimizer.optimizer.register_step_pre_hook(self._as_it_steps)  # torch's, in ZeRO's

    def _as_it_steps(self, *_) -> None:
        self._pass("optimizer")

    def around(self, data: Iterator) -> Iterator:
        for item in data:
            if self._mine:
                self._pass("loader")
            yield item

    @contextmanager
    def during(self, step: int) -> Iterator[None]:
        """While it trains a step, from 0."""
        self._step, self._passed = step, 0
        yield
        self._step = -1

    def at(self, where: str, step: int) -> None:
        """Outside of steps."""
        if self._mine and (where, step) == (self._harm.where, self._harm.step):
            self._happens()

    def _pass(self, where: str) -> bool:
        """Whether this is the instant; the harm has happened then."""
        if (where, self._step) != (self._harm.where, self._harm.step):
            return False
        self._passed += 1
        if where != "optimizer" and self._passed != self._harm.micro_batch + 1:
            return False
        self._happens()
        return True

    def _happens(self) -> None:
        harm = self._harm
        if harm.what == "raises":
            raise ValueError(f"out of luck in {harm.where}")
        if harm.what == "memory":
            no_more_memory()
        elif harm.what == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (harm.limit, resource.RLIM_INFINITY))
        elif harm.what == "late":
            time.sleep(LATE_S)

    def _around_forward(self, forward):
        def harmed(layer, *inputs):
            result = forward(layer, *inputs)
            if layer is not self._layer:
                return result
            comes = self._pass("forward")
            return _InBackward.apply(
                result * math.nan if comes and self._harm.what == "nan" else result, self
            )

        return harmed

    def _around_loss(self, loss):
        def harmed(*given):
            comes = self._pass("loss")
            return loss(*given) * (math.nan if comes and self._harm.what == "nan" else 1.0)

        return harmed


class _InBackward(torch.autograd.Function):
    """Changes nothing; its backward is where a harm may happen."""

    @staticmethod
    def forward(ctx, hidden, suffering):
        ctx.suffering = suffering
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, gradient):
        ctx.suffering._pass("backward")
        return gradient, None


def no_more_memory() -> None:
    """From here on the process gets no more address space; what asks for it first is told so by torch's
    allocator."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    torch.empty(1 << 30)
