"""Was what happened what was said? One of three verdicts, or a failure."""

from dataclasses import dataclass

from support.training import bytes_of as bytes_of

from .trainings import START, STEP, Outcome

EQUAL, ROUNDING, OTHER, REFUSED, WRONG = "equal", "rounding", "other numbers", "refused", "WRONG"
EXACT, INEXACT, DRAWN = "bit for bit", "rounding", "random"  # what rank 0's line says
ROOM = 1e-3  # of losses under "rounding", relative to the loss


@dataclass(frozen=True)
class Verdict:
    kind: str
    why: str = ""

    def __bool__(self) -> bool:
        return self.kind != WRONG


def judge(stock: list[Outcome], ours: list[Outcome]) -> Verdict:
    """Both by rank. A failure of DeepSpeed alone is a failure of the zoo."""
    if failed := [outcome.failed for outcome in stock if outcome.failed]:
        return Verdict(WRONG, f"DeepSpeed alone: {failed[0]}")
    if any(outcome.failed for outcome in ours):
        return _refusal(ours)
    lines = [line for line in ours[0].said if "micro-batches" in line]
    if len(lines) != 1:
        return Verdict(WRONG, f"rank 0 said {len(lines)} times what runs")
    later = [line for outcome in ours for line in outcome.said if line not in lines and INEXACT in line]
    claim, differing = lines[0], _differing(stock, ours)
    if EXACT in claim:
        if differing:
            return Verdict(WRONG, f"said to be equal bit for bit; different: {differing}")
        return Verdict(WRONG, f"equal, and said otherwise after step 1: {later[0]}") if later else Verdict(EQUAL)
    if DRAWN in claim:
        return Verdict(OTHER, _reason(claim))
    if INEXACT not in claim:
        return Verdict(WRONG, f"nothing said about equality: {claim}")
    if far := _far(stock, ours):
        return Verdict(WRONG, f"said to be equal up to rounding; {far}")
    return Verdict(ROUNDING, _reason(claim))


def _refusal(ours: list[Outcome]) -> Verdict:
    """By name, before any weight has changed, and on every rank."""
    named = [o for o in ours if o.refusal and "waited" not in o.failed]
    if not named:
        return Verdict(WRONG, f"in {ours[0].where}: {next(o.failed for o in ours if o.failed)}")
    if not all(o.failed for o in ours):
        return Verdict(WRONG, f"one rank alone refuses: {named[0].failed}")
    if late := [o for o in ours if o.where not in (START, f"{STEP} 1")]:
        return Verdict(WRONG, f"refused in {late[0].where}: {named[0].failed}")
    return Verdict(REFUSED, named[0].failed.split(": ", 1)[1])


def _differing(stock: list[Outcome], ours: list[Outcome]) -> str:
    for rank, (theirs, mine) in enumerate(zip(stock, ours, strict=True)):
        if theirs.losses != mine.losses:
            return f"losses {mine.losses} where 1F1B's are {theirs.losses}"
        if theirs.evaluation != mine.evaluation:
            return f"evaluation {mine.evaluation} where 1F1B's is {theirs.evaluation}"
        if theirs.weights.keys() != mine.weights.keys():
            return f"names of weights, {sorted(theirs.weights.keys() ^ mine.weights.keys())}"
        if names := [name for name, value in theirs.weights.items() if mine.weights[name] != value]:
            return f"weights on rank {rank}: {', '.join(names[:4])}"
    return ""


def _far(stock: list[Outcome], ours: list[Outcome]) -> str:
    for theirs, mine in zip(stock, ours, strict=True):
        figures = zip([*theirs.losses, theirs.evaluation], [*mine.losses, mine.evaluation], strict=True)
        if far := [(a, b) for a, b in figures if abs(a - b) > ROOM * max(1.0, abs(a))]:
            return f"a loss is {far[0][1]} where 1F1B's is {far[0][0]}"
    return ""


def _reason(claim: str) -> str:
    """What rank 0's line says after the times."""
    return claim.rsplit("; ", 1)[-1]
