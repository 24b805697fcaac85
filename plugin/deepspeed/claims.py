# SPDX-License-Identifier: Apache-2.0
"""What rank 0 says of a run's numbers beside 1F1B's: what is known before step 1, and what step 1 has shown.

Some of it nobody knows before the first step: what layers hand on (borders), and which of them draw random numbers (draws). So
the line before step 1 names what it depends on, and rank 0 says once, after it, what came out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .draws import BACKWARD, BATCH, LAYERS
from .plans import Stage

EQUAL, ROUNDED = "equal to 1F1B bit for bit", "equal to 1F1B up to rounding"


@dataclass(frozen=True)
class Seen:
    """By one rank in a step: layers after which gradients are summed in another order, or tensors laid out anew (borders), what drew
    (draws), or took another number of random numbers than was learned (streams), what draws what 1F1B draws, what recomputation has
    changed once more, and what else makes the numbers others, in words.
    """

    borders: list[int] = field(default_factory=list)
    draws: dict = field(default_factory=dict)
    strays: dict = field(default_factory=dict)
    followed: list = field(default_factory=list)
    strided: list[int] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Claim:
    """`differs`: why a run equals 1F1B up to rounding at best; "" where nothing is known against equal bits. `borders`: some border
    between layers is the plan's alone, or DeepSpeed's. `draws`: layers would draw other random numbers than in 1F1B. `coupling`: class of an
    optimizer whose steps may depend on which parameters a rank has. `left`: what makes numbers others before step 1 has begun, in words.
    """

    differs: str = ""
    borders: bool = False
    draws: bool = False
    coupling: str = ""
    left: str = ""
    follows: bool = False  # some layer looks as if it drew, so that it may be made to draw what it draws there

    @property
    def watches_borders(self) -> bool:
        return self.borders and not self.differs

    @property
    def open(self) -> bool:
        """Step 1 will tell."""
        return self.draws or self.watches_borders

    def before(self) -> str:
        """Of the line before step 1."""
        how = "layers draw random numbers of torch alone, as many for every micro-batch" if self.follows else "no layer draws random numbers"
        conditions = [how] * self.draws
        conditions += ["one tensor with a gradient at most, and contiguous, crosses each border that only one of the two has"] * self.watches_borders
        if self.left:
            return self.left
        known = (self.differs or EQUAL) + self._by_itself
        return f"{known} if {', and '.join(conditions)}: step 1 will tell" if conditions else known

    def after(self, everyone: list[Seen]) -> str:
        """What step 1 has shown. `everyone`: by rank."""
        drawn = merged(seen.draws for seen in everyone)
        if drawn and self.draws:
            return drawn_elsewhere(drawn)
        if strays := merged((seen.strays for seen in everyone), with_batches=True):
            if BACKWARD in strays:
                return DRAWN_IN_BACKWARDS
            return taken_otherwise(strays)
        if twice := [place for seen in everyone for place in seen.twice]:
            return seen_twice(twice)
        if unlike := [self.left] * bool(self.left) + [reason for seen in everyone for reason in seen.unlike]:
            return "; ".join(dict.fromkeys(unlike))
        layers = sorted({layer for seen in everyone for layer in seen.borders})
        strided = sorted({layer for seen in everyone for layer in seen.strided})
        if (layers or strided) and not self.differs:
            return at_borders(layers, strided)
        followed: dict[str, list[Any]] = {what: [] for seen in everyone for what in seen.followed}
        as_there = f"; {_listed(followed)} draw the random numbers that they draw there" if followed else ""
        return (ROUNDED if self.differs else EQUAL) + self._by_itself + as_there

    @property
    def _by_itself(self) -> str:
        """What nobody can see."""
        return f" as far as {self.coupling} updates each parameter by itself (layers have moved)" if self.coupling else ""


def merged(all_draws, with_batches: bool = False) -> dict:
    """Of several ranks. Reading batches counts only among streams: else a loader draws on the ranks that read, as in 1F1B."""
    found: dict = {}
    for draws in all_draws:
        for what, kinds in draws.items():
            if with_batches or what != BATCH:
                found.setdefault(what, set()).update(kinds)
    return found


def drawn_elsewhere(drawn: dict) -> str:
    kinds = sorted({kind for of_layer in drawn.values() for kind in of_layer})
    return (
        f"{_listed(drawn)} draw random numbers ({', '.join(kinds)}), and other ones than in 1F1B, because layers run elsewhere or in "
        "another order: losses are those of another seed; PipelineModule(seed_layers=True) makes random numbers of torch, NumPy and "
        "Python equal under every placement"
    )


DRAWN_IN_BACKWARDS = (
    "backwards draw random numbers (a hook, or a layer that recomputes itself without its generators' states): from here on random numbers are "
    "other ones than in 1F1B, and losses those of another seed"
)


def drawn_in_update(kinds: list[str]) -> str:
    return (
        f"the optimizer, or a hook of its, draws random numbers ({', '.join(kinds)}) for the parameters of a rank in turn, and layers have moved: "
        "they are other ones than in 1F1B, and losses those of another seed"
    )


def taken_otherwise(strays: dict) -> str:
    return (
        f"{_listed(strays)} take another number of random numbers than for the first micro-batch: from here on random numbers are other "
        "ones than in 1F1B, and losses those of another seed; PipelineModule(seed_layers=True) makes them equal under every placement"
    )


def seen_twice(places: list[str]) -> str:
    places = list(dict.fromkeys(places))
    return f"recomputation or hooks run in backwards, and these see it: {'; '.join(places)}; what reads them may have other numbers than in 1F1B"


def at_borders(several: list[int], strided: list[int]) -> str:
    kinds = {"several tensors with gradients": several, "tensors that are not contiguous, or whose gradients are not,": strided}
    crossing = [f"{what} cross from layer {', '.join(map(str, layers))} to the next" for what, layers in kinds.items() if layers]
    return f"{', and '.join(crossing)}, where the plan and DeepSpeed's own partition do not cut alike: {ROUNDED}"


def lost_in_1f1b(layer: int, what: str) -> str:
    return (
        f"layer {layer} hands on {what}, of which in 1F1B the bare numbers arrive at the next layer, because DeepSpeed's own partition cuts the "
        "model there: what reads the rest has other numbers"
    )


def _listed(drawn: dict) -> str:
    layers = sorted(what for what in drawn if isinstance(what, int))
    words = [f"layers {', '.join(map(str, layers))}"] if layers else []
    return " and ".join(words + [what for what in drawn if isinstance(what, str) and (what != LAYERS or not layers)])


def cuts_otherwise(program, stages: list[Stage], stock: list[int]) -> bool:
    """Whether gradients of several tensors at some border would be added in another order than in DeepSpeed's own partition."""
    cuts = {stage.layers[-1] + 1 for stage in stages if not stage.ends}
    splits = any(i.action == "I" for rank in range(program.ranks) for i in program.instructions(rank))
    return cuts != set(stock[1:-1]) or splits or any(stage.recomputes and not stage.ends for stage in stages)


def draws_otherwise(program, stages: list[Stage], owner: Callable[[int], int]) -> bool:
    """Whether some rank runs other layers than in DeepSpeed's own partition (`owner`: rank of a layer), or in another order."""
    if any(stage.ranks != (owner(layer),) for stage in stages for layer in stage.layers):
        return True
    place = {stage.index: number for number, stage in enumerate(stages)}
    for rank in range(program.ranks):
        order = [(i.micro_batch, place[i.stage]) for i in program.instructions(rank) if i.action == "F"]
        if order != sorted(order):
            return True
    return False
