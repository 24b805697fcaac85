# SPDX-License-Identifier: Apache-2.0
"""Was what happened what was said? One of four verdicts, or a failure."""

import math
import re
from dataclasses import dataclass

import torch

from .trainings import START, STEP, Outcome

EQUAL, ROUNDING, OTHER, REFUSED, WRONG = "equal", "rounding", "differs", "refused", "WRONG"
DRAWN, CONTRACT = "draw random numbers", "breaks the contract: a layer writes to more than its buffers"
OTHERWISE = (
    DRAWN,
    "random numbers than in the first",
    "so running averages, and evaluations that use them, differ",
)
EXPECTED = "ostinato: expected: the same losses as 1F1B"  # rank 0 says it of every plan
ROUNDED = (
    "the same losses as 1F1B up to rounding",
    "losses will equal 1F1B's only up to rounding",
)  # before step 1, or after it
ROOM = 1e-3  # of losses under "rounding", relative to the loss; or the step to the next number, where weights are bf16
ROOM_OF_WEIGHTS = 0.06  # relative to the largest of a tensor, or to 1: Adam's 3 steps of 0.01 up, or down, where a gradient is all rounding
NEAR = 0.5  # of losses under "differs", relative to the loss
# "a key", layer 3, a_name, a_call(), AClass.
NAMES = re.compile(r'"[^"]+"|\blayers? \d|\b\w+_\w+\b|\b\w+\(\)|\b[A-Z]\w*[a-z]\w*[A-Z]\w*')


@dataclass(frozen=True)
class Verdict:
    kind: str
    why: str = ""

    def __bool__(self) -> bool:
        return self.kind != WRONG


def judge(stock: list[Outcome], ours: list[Outcome], keeps_contract: bool = True) -> Verdict:
    """Both by rank. A failure of DeepSpeed alone is a failure of the zoo."""
    if failed := [outcome.failed or outcome.apart for outcome in stock if outcome.failed or outcome.apart]:
        return Verdict(WRONG, f"DeepSpeed alone: {failed[0]}")
    if any(outcome.failed for outcome in ours):
        return _refusal(ours)
    lines = [line for line in ours[0].said if EXPECTED in line]
    if len(lines) != 1:
        return Verdict(WRONG, f"rank 0 said {len(lines)} times what is expected: {ours[0].said}")
    differing = _differing(stock, ours)
    if not differing:
        return Verdict(EQUAL)
    if drawn := [
        line for outcome in ours for line in outcome.said if any(words in line for words in OTHERWISE)
    ]:
        return _other(stock, ours, re.sub(r"^ostinato: (rank \d+: )?", "", drawn[0]))
    far = _far(stock, ours)
    if not far:
        # What no design tells, docs/deepspeed.md lists.
        rounding = [line for line in ours[0].said if any(words in line for words in ROUNDED)] or lines
        return Verdict(ROUNDING, rounding[-1].removeprefix("ostinato: "))
    return Verdict(WRONG, f"{differing}; {far}") if keeps_contract else _other(stock, ours, CONTRACT)


def _refusal(ours: list[Outcome]) -> Verdict:
    """By name and before any weight has changed, on every rank. Where one refuses in a step, its process
    ends: the others may wait here."""
    named = [o for o in ours if o.refusal and not _waited(o) and NAMES.search(o.failed.split(": ", 1)[1])]
    if not named:
        first = next((o for o in ours if o.failed and not _waited(o)), next(o for o in ours if o.failed))
        return Verdict(WRONG, f"in {first.where}: {first.failed}")
    if not all(o.failed for o in ours):
        return Verdict(WRONG, f"one rank alone refuses: {named[0].failed}")
    if late := [o for o in ours if o.where not in (START, f"{STEP} 1")]:
        return Verdict(WRONG, f"refused in {late[0].where}: {named[0].failed}")
    if late := [o for o in ours if o.where == START and _waited(o)]:
        return Verdict(WRONG, f"in {late[0].where}: {late[0].failed}")
    return Verdict(REFUSED, named[0].failed.split(": ", 1)[1])


def _waited(outcome: Outcome) -> bool:
    return "Timeout" in outcome.failed.split(":", 1)[0] or "waited" in outcome.failed


def _other(stock: list[Outcome], ours: list[Outcome], why: str) -> Verdict:
    """Losses that differ are those of the same training still."""
    if far := _far(stock, ours, NEAR, weights=False):
        return Verdict(WRONG, f"{why}; {far}")
    return Verdict(OTHER, why)


def _differing(stock: list[Outcome], ours: list[Outcome]) -> str:
    for rank, (theirs, mine) in enumerate(zip(stock, ours, strict=True)):
        if theirs.losses != mine.losses:
            return f"losses {mine.losses} where 1F1B's are {theirs.losses}"
        if theirs.evaluation != mine.evaluation:
            return f"evaluation {mine.evaluation} where 1F1B's is {theirs.evaluation}"
        if mine.apart:
            return mine.apart
        if theirs.weights.keys() != mine.weights.keys():
            return f"names of weights, {sorted(theirs.weights.keys() ^ mine.weights.keys())}"
        if names := [name for name, value in theirs.weights.items() if mine.weights[name] != value]:
            return f"weights on rank {rank}: {', '.join(names[:4])}"
    return ""


def _far(stock: list[Outcome], ours: list[Outcome], room: float = ROOM, weights: bool = True) -> str:
    kinds = {name: kind for outcome in stock for name, kind in outcome.kinds.items()}
    room = max([room, *(torch.finfo(kind).eps for kind in kinds.values() if kind.is_floating_point)])
    for theirs, mine in zip(stock, ours, strict=True):
        figures = zip([*theirs.losses, theirs.evaluation], [*mine.losses, mine.evaluation], strict=True)
        if far := [
            (a, b) for a, b in figures if not math.isfinite(b) or abs(a - b) > room * max(1.0, abs(a))
        ]:
            return f"a loss is {far[0][1]} where 1F1B's is {far[0][0]}"
        if weights and mine.apart:
            return mine.apart
        if weights and theirs.weights.keys() != mine.weights.keys():
            return f"names of weights, {sorted(theirs.weights.keys() ^ mine.weights.keys())}"
        for name, value in theirs.weights.items() if weights else ():
            if far := _far_weights(value, mine.weights[name], kinds[name]):
                return f"{name} {far}"
    return ""


def _far_weights(theirs: bytes, mine: bytes, kind: torch.dtype) -> str:
    """Numbers that are no floats are equal."""
    if theirs == mine:
        return ""
    if not kind.is_floating_point or len(theirs) != len(mine):
        return "is another one"
    a, b = (torch.frombuffer(bytearray(value), dtype=kind).double() for value in (theirs, mine))
    room, off = ROOM_OF_WEIGHTS * max(1.0, float(a.abs().max())), float((a - b).abs().max())
    return "" if off <= room else f"is off by {off:.2g}"
