# SPDX-License-Identifier: Apache-2.0
"""What a forward leaves, of whatever kind: the one that is run before step 1, for what layers draw, is not noticed. What parts of layers that run
again read of it, and what a loss uses that is no part of it.
"""

import collections
import dataclasses
import itertools
from dataclasses import replace

import numpy
import pytest
import torch
from deepspeed.pipe import LayerSpec
from ostinato.deepspeed.changing import content_of, fill, generators_of, same_content, set_generator
from support import strangers
from support.plans import make_plan
from support.strangers import LAYERS, WIDTH, Dropping, Plain
from support.training import MICRO_BATCHES, MODELS
from test_strangers import BASE, LAYOUTS, same
from test_strangers_training import trained
from torch import nn
from torch.utils.checkpoint import checkpoint


class Counting(Plain):
    """Scales by how often it has run, which `counter` keeps: add() counts, and returns the number."""

    def __init__(self, counter):
        super().__init__()
        self.counter = counter()

    def forward(self, hidden):
        return super().forward(hidden) * (1 + 0.01 * self.counter.add())


class Pairs(collections.defaultdict):
    def __init__(self):
        super().__init__(int)

    def add(self) -> int:
        self["runs"] += 1
        return self["runs"]


class Tally(collections.Counter):
    def add(self) -> int:
        self.update(["run"])
        return self["run"]


@dataclasses.dataclass(slots=True)
class Slots:
    runs: int = 0

    def add(self) -> int:
        self.runs += 1
        return self.runs


class Iterated:
    def __init__(self):
        self.add = itertools.count().__next__


class Array(Plain):
    def __init__(self):
        super().__init__()
        self.mean = numpy.zeros(WIDTH, dtype=numpy.float32)

    def forward(self, hidden):
        self.mean *= 0.9
        self.mean += 0.1 * hidden.detach().mean(0).numpy()
        return super().forward(hidden) - torch.from_numpy(self.mean.copy())


class Listing(Plain):
    """A module that is no part of it."""

    def __init__(self):
        super().__init__()
        self.listed = [nn.BatchNorm1d(WIDTH, affine=False)]

    def forward(self, hidden):
        self.listed[0](hidden.detach())
        return super().forward(hidden) - 0.1 * self.listed[0].running_mean.clone()


class Sobol(Plain):
    def __init__(self):
        super().__init__()
        self.points = torch.quasirandom.SobolEngine(WIDTH)

    def forward(self, hidden):
        return super().forward(hidden) + 0.1 * self.points.draw(1)[0]


class Counted(Plain):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, hidden):
        return super().forward(hidden) * (1 + 0.01 * next(self.numbers))


class Annealing(Plain):
    """A checkpoint of its own, which reads what forwards change."""

    reentrant = False

    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def inner(self, hidden):
        return torch.tanh(self.lin(hidden) * self.scale)

    def anneal(self) -> None:
        self.scale *= 0.9

    def forward(self, hidden):
        self.anneal()
        return hidden + checkpoint(self.inner, hidden, use_reentrant=self.reentrant)


class AnnealingReentrant(Annealing):
    reentrant = True


class AnnealingABuffer(Annealing):
    def __init__(self):
        super().__init__()
        del self.scale
        self.register_buffer("scale", torch.ones(()))

    def anneal(self) -> None:
        self.scale.mul_(0.9)


class AnnealingAGlobal(Annealing):
    def inner(self, hidden):
        return torch.tanh(self.lin(hidden) * SCALES["now"])

    def anneal(self) -> None:
        SCALES["now"] *= 0.9


class Packing(Annealing):
    def forward(self, hidden):
        self.anneal()
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved * self.scale):
            return hidden + torch.tanh(self.lin(hidden))


class Checkpointing(Annealing):
    def anneal(self) -> None:
        pass


class Halving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight):
        ctx.save_for_backward(hidden, weight)
        return hidden @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight = ctx.saved_tensors
        gradient.mul_(0.5)
        return gradient @ weight, gradient.t() @ hidden


class HalvingInPlace(Plain):
    def forward(self, hidden):
        return hidden + torch.tanh(Halving.apply(hidden, self.lin.weight))


class EveryThird(Plain):
    """A teacher that follows now and then."""

    def __init__(self):
        super().__init__()
        self.teacher, self.runs = nn.Linear(WIDTH, WIDTH).requires_grad_(False), 0

    def forward(self, hidden):
        self.runs += 1
        if self.runs % 3 == 0:
            self.teacher.weight.data.mul_(0.5).add_(self.lin.weight.data, alpha=0.5)
        return super().forward(hidden) + self.teacher(hidden)


SCALES = {"now": 1.0}
AGAIN = {
    "annealing": (Annealing,),
    "annealing re-entrant": (AnnealingReentrant,),
    "annealing a buffer": (AnnealingABuffer,),
    "annealing a global": (AnnealingAGlobal,),
    "packing": (Packing,),
    "checkpointing": (Checkpointing,),
    "halving in place": (HalvingInPlace,),
    "every third": (EveryThird,),
}
KEEPING = {
    "defaultdict": (Counting, Pairs),
    "counter": (Counting, Tally),
    "slots": (Counting, Slots),
    "array": (Array,),
    "module in a list": (Listing,),
    "sobol": (Sobol,),
    "iterator": (Counted,),
}


class Following(nn.Module):
    """A loss over what it has been."""

    def __init__(self):
        super().__init__()
        self.register_buffer("usual", torch.ones(()))

    def forward(self, hidden, targets):
        loss = strangers.loss(hidden, targets)
        with torch.no_grad():
            self.usual.mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss / self.usual.clone()


class Calling:
    """An object with a loss."""

    def __init__(self, made):
        self.made = made

    def __call__(self, *given):
        return self.made(*given)


class Weighing:
    def __init__(self, weights):
        self.weights = weights

    def __call__(self, hidden, targets):
        return ((hidden - targets).square() * torch.as_tensor(self.weights)).mean()


def closes_over(made):
    return lambda *given: made(*given)


def drawn() -> nn.Module:
    """Other numbers on every rank."""
    across = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    return Calling(lambda hidden, targets: strangers.loss(across(hidden), across(targets)))


LOSSES = {
    "closing": lambda: closes_over(Following()),
    "calling": lambda: Calling(Following()),
    "drawn module": drawn,
    "drawn tensor": lambda: Weighing(torch.rand(WIDTH)),
    "drawn array": lambda: Weighing(torch.rand(WIDTH).numpy()),
    "equal tensor": lambda: Weighing(torch.arange(float(WIDTH))),
}


class Left:
    micro_batches = staticmethod(strangers.micro_batches)

    def __init__(self, name: str):
        self._name = name

    @property
    def loss(self):
        return LOSSES.get(self._name, lambda: strangers.loss)()

    def layers_of(self, options) -> list:
        SCALES["now"] = 1.0
        kind = (KEEPING | AGAIN).get(self._name, (Plain,))
        return [LayerSpec(*{1: (Plain,) if self._name in AGAIN else (Dropping,), 2: kind, 5: kind}.get(layer, (Plain,))) for layer in range(LAYERS)]


MODELS |= {f"left by {name}": Left(name) for name in (*KEEPING, *AGAIN, *LOSSES)}


def trains(options) -> dict:
    return trained(options)


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: {"plan": str(make_plan(folder / name, LAYOUTS[name], LAYERS, MICRO_BATCHES)), "timeout_s": 20} for name in ("wave", "looped", "split")}


def both(world, name: str, section: dict) -> tuple[dict, dict]:
    """DeepSpeed's and ours, of rank 0."""
    options = replace(BASE, model=f"left by {name}")
    return world.run(trains, options)[0], world.run(trains, replace(options, section=section))[0]


@pytest.mark.parametrize("name", [*(name for name in KEEPING if name != "iterator"), "closing", "calling", "equal tensor"])
def test_what_a_forward_leaves_before_step_1_is_undone(world2, sections, name):
    theirs, ours = both(world2, name, sections["wave"])
    assert same(ours, theirs) and not theirs["error"]
    assert "equal to 1F1B bit for bit" in ours["said"][-1], ours["said"]


def test_an_iterator_that_a_forward_has_moved_on_is_said(world2, sections):
    theirs, ours = both(world2, "iterator", sections["wave"])
    assert not same(ours, theirs) and not ours["error"]
    said = "\n".join(ours["said"])
    assert 'a forward before the first step shows what layers draw, and these are not what they were: layer 2: the attribute "numbers", an iterator' in said, said


SAID = {
    "annealing": 'forwards change the attribute "scale" of layer 2, and backwards run Python that may read it (hooks, autograd.Functions, checkpoints)',
    "annealing a buffer": 'forwards change "scale" of layer 2, and backwards run a part of the layer again (torch.utils.checkpoint)',
    "annealing a global": 'forwards change the global "SCALES", and backwards run Python that may read it',
}


@pytest.mark.parametrize("name", [name for name in AGAIN if name.startswith(("annealing", "packing"))])
def test_what_a_part_that_runs_again_reads_is_said(world2, sections, name):
    theirs, ours = both(world2, name, sections["wave"])
    assert not same(ours, theirs) and not ours["error"]
    assert SAID.get(name, SAID["annealing"]) in ours["said"][-1] and "numbers may be others" in ours["said"][-1], ours["said"]


def test_a_part_that_runs_again_with_what_it_had_is_not_said(world2, sections):
    theirs, ours = both(world2, "checkpointing", sections["wave"])
    assert same(ours, theirs) and not theirs["error"] and "equal to 1F1B bit for bit" in ours["said"][-1], ours["said"]


def test_a_backward_that_changes_things_and_runs_in_halves_is_said(world2, sections):
    theirs, ours = both(world2, "halving in place", sections["split"])
    said = "the plan runs the backward of Halving in two halves, each of which runs all of it, and it changes things (mul_)"
    assert not same(ours, theirs) and not ours["error"] and said in ours["said"][-1], ours["said"]
    ours = both(world2, "halving in place", sections["wave"])[1]
    assert same(ours, theirs) and "equal to 1F1B bit for bit" in ours["said"][-1], ours["said"]


def test_what_changes_in_every_third_forward_is_seen(world2, sections):
    """Not by the last micro-batches of steps 1 and 2; the rank that has it says it."""
    options = replace(BASE, model="left by every third", section=sections["wave"])
    said = world2.run(trains, options)[1]["said"]
    assert "rank 1: step 3 does what step 1 did not: " in said[-1] and 'forwards change "teacher.weight" of layer 2 where autograd does not see it' in said[-1], said


@pytest.mark.parametrize("name", ["drawn module", "drawn tensor", "drawn array"])
def test_a_loss_with_other_numbers_on_each_rank(world2, sections, name):
    theirs, ours = both(world2, name, sections["looped"])
    assert same(ours, theirs) and not theirs["error"], "the last rank computes it in both"
    ours = both(world2, name, sections["wave"])[1]
    assert ours["error"].startswith("OstinatoError: the placement computes the loss on rank 0 and 1F1B on rank 1, and tensors that it uses ("), ours["error"]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], lambda value: value.append(3)),
        ({"a": 1}, lambda value: value.update(a=2)),
        ({1, 2}, lambda value: value.add(3)),
        (collections.deque([1], maxlen=2), lambda value: value.append(3)),
        (collections.OrderedDict(a=1, b=2), lambda value: value.move_to_end("a")),
        (Pairs(), Pairs.add),
        (Tally("ab"), Tally.add),
        (numpy.array([1.0, numpy.nan]), lambda value: value.fill(2)),
        (numpy.array(3), lambda value: value.fill(4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_become_what_they_were(value, change):
    was, looked = content_of(value), repr(value)
    assert same_content(was, content_of(value))
    change(value)
    assert not same_content(was, content_of(value))
    fill(value, was)
    assert repr(value) == looked and same_content(was, content_of(value))


def test_a_list_in_itself_ends():
    value: list = [torch.Generator()]
    value.append(value)
    assert generators_of(value)[0][0] is value[0]


def test_a_sobol_engine_draws_once_more():
    engine = torch.quasirandom.SobolEngine(3)
    engine.draw(5)
    (_, state), = generators_of(engine)
    drawn_first = engine.draw(4)
    set_generator(engine, state)
    assert torch.equal(engine.draw(4), drawn_first) and generators_of(engine)[0][1] != state
