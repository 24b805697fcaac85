# SPDX-License-Identifier: Apache-2.0
"""The lines that rank 0 prints: which plan runs, what it gains, and which losses are expected of it."""

import torch.distributed as dist
from ostinato.errors import printable
from ostinato.gain import gain
from ostinato.ranks.presence import ranks_in_words

from ..randomness.draws import BACKWARD, LAYERS
from ..section.plans import Stage

ROUNDED = "up to rounding"


def say(what: str, newlines: bool = False) -> None:
    """Rank 0 prints it. `newlines`: those in it stay."""
    if dist.get_rank() == 0:
        print(f"ostinato: {printable(what, newlines=newlines)}", flush=True)


def ran_whole(rank: int, stages: list[str]) -> str:
    """What a rank says after the first step of a plan that splits backwards which cannot be split."""
    return (
        f"ostinato: rank {rank}: the backward of {', '.join(stages)} ran whole, where its input half is planned: activation "
        "checkpointing cannot be split"
    )


def draws(rank: int, what: str, step: int, drawn: dict, strays: dict) -> str:
    """What a rank says of a "step", or of an "evaluation", in which layers draw other random numbers than in
    1F1B."""
    where = f"step {step}" if what == "step" else "an evaluation"
    return (
        f"ostinato: rank {rank}: in {where}, {_in_words(drawn, strays)}: losses are those of another seed; PipelineModule(seed_layers=True) makes random "
        "numbers of torch, NumPy and Python equal under every placement"
    )


def several(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers that hand on more than one tensor with a gradient, where only
    one of the two runs has a border."""
    return (
        f"several tensors with gradients cross from layer {', '.join(map(str, layers))} to the next, where only one of the plan and DeepSpeed's partition "
        f"cuts: expected: the losses of 1F1B {ROUNDED}"
    )


def strided(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers that hand on, or are given back, a transposed tensor, say."""
    return (
        f"what crosses from layer {', '.join(map(str, layers))} to the next, or its gradient, is not contiguous, which a border makes it, and only one of the "
        f"plan and DeepSpeed's partition cuts there: expected: the losses of 1F1B {ROUNDED}"
    )


def written_again(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers with activation checkpointing and, say, BatchNorm."""
    return (
        f"layer {', '.join(map(str, layers))} writes to buffers in its forward and again in its backward, which runs the forward once more: the plan has "
        "these in another order than 1F1B, so what is averaged there, and evaluations with it, differ"
    )


def ends(stages: list[Stage], ranks: list[int]) -> str:
    """What rank 0 says before step 1 where the plan reads data, or computes losses, on other ranks than 1F1B.
    `ranks`: of the pipeline."""
    reads, losses = (
        {ranks[stage.rank] for stage in stages if of(stage)} for of in (lambda s: s.reads, lambda s: s.ends)
    )
    if reads == {ranks[0]} and losses == {ranks[-1]}:
        return ""
    return (
        f"{ranks_in_words(sorted(reads))} {'reads' if len(reads) == 1 else 'read'} inputs, and {ranks_in_words(sorted(losses))} "
        f"{'computes' if len(losses) == 1 else 'compute'} the loss, which are ranks {ranks[0]} and {ranks[-1]} in 1F1B: engine.is_first_stage() and "
        "engine.is_last_stage() say so, a grid does not"
    )


NORM = "get_global_grad_norm() sums rank by rank, and layers have moved: it equals 1F1B's up to rounding"


def expected(
    program,
    regrouped: list[str],
    clipped: bool,
    copies: int = 1,
    branches: bool = False,
    order: bool | None = None,
) -> str:
    """What the plan's design says of losses, which nothing has measured yet.

    `regrouped`: tied layers whose gradients meet in another order (rebuild). `clipped`: gradients are clipped
    by a norm that is summed over other ranks than in DeepSpeed's partition. `copies`: directions in which the
    plan runs the model. `branches`: its stages are not a chain. `order`: whether the plans of steps keep the
    order in which 1F1B adds; None: `program` is the plan of all.
    """
    why = _rounds(program, regrouped, clipped, copies, branches, order)
    return (
        f"expected: the losses of 1F1B {ROUNDED}, for {why}"
        if why
        else "expected: the losses of 1F1B bit for bit"
    )


def _rounds(
    program, regrouped: list[str], clipped: bool, copies: int, branches: bool, order: bool | None
) -> str:
    """Why they are not equal bit for bit; "" where they are."""
    if copies > 1:
        return f"gradients of the {copies} directions are added at the end"
    if branches:
        return "gradients of what several layers read are added in another order"
    if order is False:
        return "every step has an order of its own, in which gradients and losses are added"
    if order is None and not program.keeps_order:
        return "gradients or losses are added in another order"
    if shared := [stage.name for stage in program.stages if len(stage.ranks) > 1]:
        return f"ranks sum their parts of {', '.join(shared)}, which 1F1B computes on one"
    if regrouped:
        return f"gradients of layers tied as {', '.join(regrouped)} are added in another order"
    return "gradient clipping sums its norm rank by rank, and layers have moved" if clipped else ""


def line(program, sized: bool = False) -> str:
    """What runs, and what it gains. `sized`: every step has a plan of its own."""
    what = (
        f'plan {program.plan_sha256[:12]} on placement "{program.placement_name}", {program.micro_batches} '
    )
    if not any(stage.has_backward for stage in program.stages):
        return f"{what}requests: predicted {program.predicted / 1e6:.3f} ms; forwards only: eval_batch() runs it, train_batch() is refused"
    if sized:
        return f"{what}micro-batches a step, each step planned for their sizes"
    gained = (
        gain(program.beside, program.predicted) or f"expected to take {program.predicted / 1e6:.1f} ms a step"
    )
    return f"{what}micro-batches: {gained}{optimizer(program)}"


def optimizer(program) -> str:
    return f"; {program.whole_step / 1e6:.1f} ms with the optimizer's" if program.whole_step else ""


def _in_words(drawn: dict, strays: dict) -> str:
    """Of what draws, and of what took another number of random numbers than was learned."""
    if drawn:
        kinds = sorted({kind for of_layer in drawn.values() for kind in of_layer})
        return f"{_listed(drawn)} draw random numbers ({', '.join(kinds)}), and other ones than in 1F1B, because layers run elsewhere or in another order"
    if BACKWARD in strays:
        return "backwards draw random numbers (a hook, or a layer that recomputes itself without its generators' states), and from here on other ones than in 1F1B"
    return f"{_listed(strays)} take another number of random numbers than for the first micro-batch: from here on random numbers are other ones than in 1F1B"


def _listed(drawn: dict) -> str:
    layers = sorted(what for what in drawn if isinstance(what, int))
    words = [f"layers {', '.join(map(str, layers))}"] if layers else []
    return " and ".join(
        words + [what for what in drawn if isinstance(what, str) and (what != LAYERS or not layers)]
    )
