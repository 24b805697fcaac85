# SPDX-License-Identifier: Apache-2.0
"""The one line that rank 0 prints: which plan runs, what it promises, and how its numbers relate to 1F1B's."""

from ostinato.ranks.presence import ranks_in_words

from .claims import ROUNDED, seen_twice


def ran_whole(rank: int, stages: list[str]) -> str:
    """What a rank says after the first step of a plan that splits backwards which cannot be split."""
    return (
        f"ostinato: rank {rank}: the backward of {', '.join(stages)} ran whole, where its input half is planned: activation "
        "checkpointing cannot be split"
    )


def shown(relation: str) -> str:
    """What rank 0 says after step 1, where the line left it open. `relation`: as Claim.after() says it."""
    return f"ostinato: step 1 has shown: {relation}"


def shown_later(rank: int, step: int, relation: str) -> str:
    """What a rank says where a later step does what the first did not, or the first what was not expected."""
    if step == 1:
        return f"ostinato: rank {rank}: step 1 has shown: {relation}"
    return f"ostinato: rank {rank}: step {step} does what step 1 did not: {relation}"


def evaluated(rank: int, relation: str) -> str:
    """What a rank says after an evaluation in which layers draw, where its numbers are not 1F1B's."""
    return f"ostinato: rank {rank}: an evaluation has shown: {relation}"


def run_twice(rank: int, places: list[str]) -> str:
    """What a rank says of layers that are recomputed, and whose forward changes what is not put back for it."""
    return f"ostinato: rank {rank}: {seen_twice(places)}"


def each_its_own(places: list[str]) -> str:
    """What rank 0 says after the first step of a plan in two directions whose forwards change attributes of layers."""
    shown = "; ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    return f"ostinato: forwards change these, and each direction has its own, of the batches that go its way: {shown}"


def measuring_left(rank: int, places: list[str]) -> str:
    """What a rank says where the forwards that "auto" measures with have changed what cannot be put back."""
    return f"ostinato: rank {rank}: measuring ran forwards, and these are not what they were before it: {'; '.join(places)}"


def left_by_measuring(ranks: list[int]) -> str:
    """What rank 0 says for them of the numbers. `ranks`: those that said what measuring_left() says."""
    return f"measuring has changed what {ranks_in_words(ranks)} named: what reads it may have other numbers than in 1F1B"


NORM = "ostinato: get_global_grad_norm() sums rank by rank, and layers have moved: it equals 1F1B's up to rounding"
STEPS_OF_THEIR_OWN = f"every step has an order of its own, in which gradients and losses are added: {ROUNDED}"


def difference(program, regrouped: list[str], clipped: bool, copies: int = 1, branches: bool = False, order: bool | None = None) -> str:
    """Why the run equals 1F1B up to rounding only; "" where it equals it bit for bit.

    `regrouped`: tied layers whose gradients meet in another order (rebuild). `clipped`: gradients are clipped by a norm that is
    summed over other ranks than in DeepSpeed's partition. `copies`: directions in which the plan runs the model. `branches`: its
    stages are not a chain. `order`: whether the plans of steps keep the order in which 1F1B adds; None: `program` is the plan of all.
    """
    if copies > 1:
        return f"gradients of the {copies} directions are added at the end: {ROUNDED}"
    if branches:
        return f"gradients of what several layers read are added in another order: {ROUNDED}"
    if order is False:
        return STEPS_OF_THEIR_OWN
    if order is None and not program.keeps_order:
        return f"gradients or losses are added in another order: {ROUNDED}"
    if shared := [stage.name for stage in program.stages if len(stage.ranks) > 1]:
        return f"ranks sum their parts of {', '.join(shared)}, which 1F1B computes on one: {ROUNDED}"
    if regrouped:
        return f"gradients of layers tied as {', '.join(regrouped)} are added in another order: {ROUNDED}"
    if clipped:
        return f"gradient clipping sums its norm rank by rank, and layers have moved: {ROUNDED}"
    return ""


def line(program, relation: str, sized: bool = False) -> str:
    """`relation`: as Claim.before() says it. `sized`: every step has a plan of its own."""
    what = f'ostinato: plan {program.plan_sha256[:12]} on placement "{program.placement_name}", {program.micro_batches} '
    if not any(stage.has_backward for stage in program.stages):
        return f"{what}requests: predicted {program.predicted / 1e6:.3f} ms; forwards only: eval_batch() runs it, train_batch() is refused"
    if sized:
        return f"{what}micro-batches a step, each step planned for their sizes; numbers: {relation}"
    return f"{what}micro-batches: predicted step {program.predicted / 1e6:.3f} ms{optimizer(program)}{against(program)}; numbers: {relation}"


def optimizer(program) -> str:
    return f", {program.whole_step / 1e6:.3f} ms with the optimizer's" if program.whole_step else ""


def against(program) -> str:
    """What 1F1B would take instead; "" where nothing says it."""
    usual = program.one_f_one_b
    if not usual:
        return ""
    longer = f", {usual / program.predicted:.2f} times as long" if program.predicted else ""
    return f"; 1F1B would take {usual / 1e6:.3f} ms{longer}"



def of_next_step(rank: int, text: str) -> str:
    """What the rank that reads the next step's micro-batches while one runs says of it ("read_ahead")."""
    return f"ostinato: rank {rank}: {text}"


def nothing_ahead(rank: int) -> str:
    """The same, where layers may draw random numbers."""
    return of_next_step(rank, 'layers may draw random numbers, so the loader is read where 1F1B reads it: "read_ahead" has no effect')
