# SPDX-License-Identifier: Apache-2.0
"""The lines that a run prints, most of them on rank 0: which plan runs, what it gains, and which losses to
expect."""

import statistics
from collections.abc import Sequence

import torch.distributed as dist
from ostinato.errors import counted, printable, put, size
from ostinato.gain import Gain
from ostinato.ranks.presence import ranks_in_words

from ..randomness.draws import BACKWARD, BATCH, LAYERS
from ..section.plans import Stage

SAME, EXACT, ROUNDED = "the same losses as 1F1B", "bit for bit", "up to rounding"


def say(what: str, newlines: bool = False) -> None:
    """Prints `what` on rank 0. `newlines`: keep its newlines."""
    if dist.get_rank() == 0:
        put(f"ostinato: {printable(what, newlines=newlines)}")


STEP_1_SHOWS = f"step 1 shows that losses will equal 1F1B's only {ROUNDED}, not {EXACT}, because"


def _layers(layers: Sequence[int]) -> str:
    """ "layer 3"; "layers 1, 3 and 8"."""
    *others, last = map(str, layers)
    return f"layers {', '.join(others)} and {last}" if others else f"layer {last}"


def ran_whole(rank: int, stages: list[str]) -> str:
    """What a rank says after the first step where the plan splits backwards that cannot be split."""
    return (
        f"ostinato: rank {rank}: the backward of {', '.join(stages)} ran whole although the plan splits it: activation "
        "checkpointing cannot be split"
    )


def draws(rank: int, what: str, step: int, drawn: dict, strays: dict) -> str:
    """What a rank says of a "step" or an "evaluation" in which layers draw different random numbers than
    under 1F1B."""
    where = f"ostinato: rank {rank}: in {f'step {step}' if what == 'step' else 'an evaluation'}, "
    if set(drawn) == {BATCH}:
        return where + (
            "a loader draws random numbers that differ from 1F1B's, because layers set the generators (seed_layers): what it shuffles or "
            "draws with them is as with a different seed. Give it a generator"
        )
    hint = (
        ". PipelineModule(seed_layers=True) makes what layers draw from torch, NumPy and Python equal under every placement"
        if {*drawn, *strays} - {BATCH, BACKWARD}
        else ""
    )
    return f"{where}{_which_draw(drawn, strays)}: the losses are as with a different seed{hint}"


def several(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers that output several tensors with gradients, where either the
    plan or DeepSpeed's partition cuts the model, but not both."""
    return (
        f"{STEP_1_SHOWS} several tensors with gradients pass from {_layers(layers)} to the next, where either the plan or DeepSpeed's "
        "partition cuts the model, but not both"
    )


def gaps(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers whose output, or its gradient, has gaps in memory."""
    return (
        f"{STEP_1_SHOWS} a tensor that passes from {_layers(layers)} to the next, or its gradient, is a slice or expanded; a transfer makes it "
        "contiguous, and the plan cuts the model there, but DeepSpeed's partition does not"
    )


def scripted(layers: list[int]) -> str:
    """What rank 0 says after step 1 of layers with modules under torch.jit.script, unless each rank runs just what it runs under
    1F1B."""
    return (
        f"{STEP_1_SHOWS} parts of {_layers(layers)} are under torch.jit.script, whose first run on a rank rounds differently from the next ones: "
        "under the plan it is that of another layer or micro-batch"
    )


def written_again(layers: Sequence[int]) -> str:
    """What rank 0 says after step 1 of layers that combine activation checkpointing with, say, BatchNorm."""
    return (
        f"the forward of {_layers(layers)} writes to buffers, and again when a backward recomputes it. The plan runs these in "
        "a different order than 1F1B, or once more in a split backward, so running averages, and evaluations that use them, differ; so do losses "
        "and weights, beyond rounding, if forwards read these buffers in training (spectral_norm does, BatchNorm does not)"
    )


def ran_again(layers: Sequence[int]) -> str:
    """Why steps differ beyond rounding, where layers write to buffers as written_again() says."""
    reads = (
        "reads the buffers to which it writes" if len(layers) == 1 else "read the buffers to which they write"
    )
    return (
        f"{_layers(layers)} {reads}, and backwards that recompute forwards write to them in a different order than in 1F1B: keep activation "
        "checkpointing off (PipelineModule's checkpointable_layers)"
    )


def other_sizes(sizes: dict[int, tuple[int, int]]) -> str:
    """What rank 0 says after step 1 where activations are not as large as in the plan. `sizes`: by layer, (bytes of a
    micro-batch, bytes in the plan)."""
    layer, (now, planned) = min(sizes.items())
    more = f" (and {counted(len(sizes) - 1, 'more layer')})" if len(sizes) > 1 else ""
    return (
        f"layer {layer}{more} outputs {size(now)} a micro-batch, and the plan was made for {size(planned)}: the inputs have another shape, or layers "
        "another dtype, than those profiled; times and memory will differ from the plan; profile again"
    )


def ends(stages: list[Stage], ranks: list[int]) -> str:
    """What rank 0 says before step 1 where the plan reads data or computes losses on different ranks than
    1F1B. `ranks`: of the pipeline."""
    reads, losses = (
        {ranks[stage.rank] for stage in stages if of(stage)} for of in (lambda s: s.reads, lambda s: s.ends)
    )
    if reads == {ranks[0]} and losses == {ranks[-1]}:
        return ""
    return (
        f"{ranks_in_words(sorted(reads))} {'reads' if len(reads) == 1 else 'read'} inputs, and {ranks_in_words(sorted(losses))} "
        f"{'computes' if len(losses) == 1 else 'compute'} the loss (under 1F1B: ranks {ranks[0]} and {ranks[-1]}). engine.is_first_stage() and "
        "engine.is_last_stage() reflect this; engine.grid does not"
    )


def places(stages: Sequence[Stage], parts: list[int]) -> str:
    """What rank 0 says before step 1 of which layers each rank has; "" where DeepSpeed's partition, which
    DeepSpeed prints, has the same."""
    ranks = range(len(parts) - 1)
    ours = [sorted({layer for s in stages if rank in s.ranks for layer in s.layers}) for rank in ranks]
    own = [list(range(parts[rank], parts[rank + 1])) for rank in ranks]
    if ours == own:
        return ""
    return (
        f"layers of each rank: {' | '.join(map(_ranges, ours))} (DeepSpeed prints its own partition: "
        f"{' | '.join(map(_ranges, own))})"
    )


def first_step_failed(moved: str, ran_alone: bool | None) -> str:
    """What an error from the script's code in step 1 is told with. `moved`: places(); `ran_alone`: the step has
    run under DeepSpeed's own schedule; None: an evaluation, which nothing compares."""
    shows = {
        True: "the step ran under DeepSpeed's own schedule, and failed under the plan; ",
        False: 'with "check": 1 the step first runs under DeepSpeed\'s own schedule, which shows whether it fails there, too; ',
        None: "",
    }[ran_alone]
    return (
        f"ostinato: {shows}{moved}. A layer that reads what another one stores outside its outputs, or a loss that does, must be in one "
        "stage with it"
    )


def _ranges(layers: list[int]) -> str:
    """[0, 2, 3, 4] -> "0, 2-4"."""
    first = [layer for layer in layers if layer - 1 not in layers]
    last = [layer for layer in layers if layer + 1 not in layers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True))


CLIPPING = "clip_fp32_gradients() is not DeepSpeed's own, and is not called: this plan clips by the norm that DeepSpeed's has under 1F1B"
NORM = "get_global_grad_norm() sums rank by rank, and layers have moved: it equals 1F1B's norm up to rounding"


def expected(
    program,
    regrouped: list[str],
    clipped: bool,
    copies: int = 1,
    branches: bool = False,
    order: bool | None = None,
    unless: Sequence[str] = (),
) -> str:
    """Which losses to expect from the plan's design; nothing has been measured yet.

    `regrouped`: tied layers whose gradients are added in a different order (rebuild). `clipped`: gradients
    are clipped by a norm that is summed over different ranks than in DeepSpeed's partition. `copies`:
    directions in which the plan runs the model. `branches`: its stages are not a chain. `order`: whether the
    plans of single steps keep the order in which 1F1B adds; None: `program` is the plan of every step. `unless`:
    what would change them, of which nothing is known.
    """
    why = _rounds(program, regrouped, clipped, copies, branches, order)
    said = f"expected: {SAME} {ROUNDED}, because {why}" if why else f"expected: {SAME}, {EXACT}"
    return f"{said}, unless {' or '.join(unless)}" if unless else said


def is_exact(said: str) -> bool:
    """What expected() has said."""
    return EXACT in said


def _rounds(
    program, regrouped: list[str], clipped: bool, copies: int, branches: bool, order: bool | None
) -> str:
    """Why losses are not equal bit for bit; "" where they are."""
    if copies > 1:
        return f"the gradients of the {copies} directions are added at the end"
    if branches:
        return "gradients of outputs that several layers read are added in a different order"
    if order is False:
        return "each step adds gradients and losses in its own order"
    if order is None and not program.keeps_order:
        return "gradients or losses are added in a different order"
    if shared := [stage.name for stage in program.stages if len(stage.ranks) > 1]:
        return f"several ranks compute parts of {', '.join(shared)} and add them, where 1F1B uses one rank"
    if regrouped:
        return f"gradients of layers tied as {', '.join(regrouped)} are added in a different order"
    return "gradient clipping sums its norm rank by rank, and layers have moved" if clipped else ""


def lines(program, gain: Gain | None = None, sized: bool = False) -> list[str]:
    """What runs, and what it gains, if anything is known of that; then the figures. `sized`: each step gets its
    own plan."""
    if not any(stage.has_backward for stage in program.stages):
        return [
            f"{_what(program, 'request')}: predicted {program.predicted / 1e6:.3f} ms; forwards only, for eval_batch(): train_batch() is refused"
        ]
    what = _what(program, "micro-batch")
    if sized:
        return [f"{what} a step; each step gets a plan for its sizes"]
    if gain is None:
        return [what]
    return [f"{what}: {gain.headline}", *filter(None, [gain.figures])]


OWN_PARTITION = "1F1B on DeepSpeed's own partition"


def changed(program) -> str:
    """The plan for a number of micro-batches that the script has changed to, or of "adapt". Its gain is told over
    DeepSpeed's own partition alone: over another yardstick than before, the figure would read as a change of the gain,
    and "now" another plan runs."""
    gain = gain_of(program)
    own = f"{OWN_PARTITION} when it was profiled" if gain.measured else OWN_PARTITION
    told = gain.over(own) if gain.is_over_your_run else f"predicted {program.predicted / 1e6:.1f} ms a step"
    return f"{_what(program, 'micro-batch')}: {told}"


def after_move(program, expected: float, took: float) -> str:
    """The plan that "adapt" has moved to. `expected`, `took`: ns of a step, and before the move."""
    return (
        f"{_what(program, 'micro-batch')}: expected to take {expected / 1e6:.1f} ms a step, without the optimizer; "
        f"{took / 1e6:.1f} ms before the move"
    )


def _what(program, unit: str) -> str:
    name = f'plan {program.plan_sha256[:12]} on placement "{program.placement_name}"'
    return f"{name}, {counted(program.micro_batches, unit)}"


def gain_of(program, before: Sequence[float] = ()) -> Gain:
    """`before`: seconds of whole steps of DeepSpeed's own, as this run has measured them."""
    measured = round(1e9 * statistics.median(before)) if before else None
    return Gain(program.beside, program.predicted, program.whole_step, measured)


def _which_draw(drawn: dict, strays: dict) -> str:
    """Which layers draw, or which drew more or fewer random numbers than was learned."""
    if drawn:
        kinds = sorted({kind for of_layer in drawn.values() for kind in of_layer})
        return f"{_listed(drawn)} draw random numbers ({', '.join(kinds)}) that differ from 1F1B's, because layers run on different ranks or in a different order"
    if BACKWARD in strays:
        return "backwards draw random numbers (a hook, or a layer that recomputes itself without restoring its random state); from here on they differ from 1F1B's"
    return f"{_listed(strays)} drew more or fewer random numbers than in the first micro-batch; from here on they differ from 1F1B's"


def _listed(drawn: dict) -> str:
    layers = sorted(what for what in drawn if isinstance(what, int))
    words = [f"layers {', '.join(map(str, layers))}"] if layers else []
    return " and ".join(
        words + [what for what in drawn if isinstance(what, str) and (what != LAYERS or not layers)]
    )
