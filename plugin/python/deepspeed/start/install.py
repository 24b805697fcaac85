# SPDX-License-Identifier: Apache-2.0
"""Makes an engine that runs the program on which all ranks have agreed, and says what it is expected to do."""

import hashlib
import json
from functools import partial
from itertools import chain, pairwise

from deepspeed.runtime.fp16 import unfused_optimizer

from ostinato.ranks import cores
from ostinato.gain import WARM_UP, Gain

from . import second_start
from .prepare import restrictions_here
from ..place import loss_state, model_identity
from ..save import universal
from ..save.partition import stock_names
from ..section import plans, verdict
from ..section.agreement import of_rank_0
from ..tell.drift import EVERY, SAMPLED, BlockTimes, Drift
from ..equal.random_numbers import draws_elsewhere
from ..tell.announce import after_move, ends, expected, gain_of, lines, places, say
from ..tell.speedup import Expected, Speedup
from ..section.config import Search as SearchOptions
from ..engine.adapt import Adapt
from ..engine.clipping import even_groups
from ..engine.engine import PlanEngine, become
from ..engine.learning_rates import dropped_groups
from ..stages.copies import place_of_gradients
from ..stages.idle import NAME, give_idle, given_groups, names_where_idle
from ..stages.tied_sums import TiedSums
from ..place.placing import Placed, Prepared
from ..randomness.random_state import Drawing
from ..section.refusals import check_lanes, check_offloads, check_trained
from ..section.refused_keys import whole_messages
from ..engine.run import Run
from ..section.kept import stages_of_run
from ..upstream import Config, Engine, Model, stock_parts

# Optimizers that update each element by its own gradient and state, and who makes them.
ELEMENTWISE = (
    *("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD", "Rprop"),
    *("FusedAdam", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad", "FusedLion", "DeepSpeedCPULion"),
)
MAKERS = ("torch.", "deepspeed.", "apex.", "transformer_engine.")

NOT_COMPARED = (
    'no run has compared this plan with DeepSpeed\'s 1F1B under this configuration ("check": 1 does)'
)
with_kept: list[str] = []  # engines of this process that run the plan in "output"


def install(
    engine: Engine, original_init: Drawing, placed: Placed, prepared: Prepared, args: tuple, kwargs: dict
) -> None:
    """Makes `engine` run the program on which all ranks have agreed. All ranks must call it."""
    model, config, (asked, paths), program = (
        kwargs["model"],
        kwargs["config_class"],
        prepared.checked(),
        prepared.program,
    )
    assert program is not None
    stages, rebuilt = placed.stages, placed.rebuilt
    check_trained(model, stages, program)
    check_lanes(model, stages, program)
    check_offloads(program)
    notes = [
        model_identity.size_note(program, config.train_micro_batch_size_per_gpu),
        of_another_partition(prepared, model),
    ]
    for said in filter(None, notes):
        say(said)
    if prepared.kept:
        with_kept.append(prepared.engine)
    loss_state.hand_on(model, stages)
    run = _run_of(engine, placed, prepared, kwargs)
    moved = second_start.moved(prepared)
    before = second_start.before(prepared)
    # Nothing is known of what the plan gains where it was compared with something else.
    gain = None if moved or (any(notes) and not before) else gain_of(program, before)
    run.speedup = None if gain is None else _speedup(prepared, model, before, gain)
    restored = second_start.trains_as_first(prepared, model, stages, original_init.states)
    original_init.states = restored.states
    if rebuilt.copies is not None:
        rebuilt.copies.settle()
    vars(model)["has_engine"] = True
    restrictions = restrictions_here(model, type(engine), asked) if asked.adapt is not None else []
    become(PlanEngine, engine)
    engine.__dict__["_ostinato"] = run
    original_init(engine, *args, **kwargs)
    _keep_outputs_whole(engine, config)
    even_groups(engine)
    others_name = rebuilt.copies.others_name if rebuilt.copies else lambda _: False
    universal.prepare(engine, rebuilt.parts, others_name)
    run.expected_losses = partial(_expected, engine, run, rebuilt)
    run.losses_said = run.expected_losses()
    elsewhere = draws_elsewhere(program, stages, run.stock_parts, model, any_order=asked.sizes is not None)
    records = second_start.records_of_1f1b(prepared)
    engine.ostinato_begin(elsewhere, records)  # type: ignore[attr-defined]  # it has become a PlanEngine
    for_another = second_start.for_another(prepared)
    before_this = run.check_before() if records is None and plans.trains(program) else None
    run.was_equal = before_this is not None and before_this.equal
    if asked.adapt is not None and plans.trains(program):
        move = partial(second_start.move, prepared)
        wanted = asked.search or SearchOptions()
        run.adapt = Adapt(asked.adapt, wanted, program, engine.stage_id, paths, moved, move, restrictions)
    elif (
        program.model_sha256
        and plans.trains(program)
        and not asked.sizes
        and not cores.sharing(prepared.places)
    ):
        run.drift = Drift(BlockTimes(program, engine.stage_id, EVERY // SAMPLED))
    for said in (*rebuilt.joined, restored.said):
        if said:
            say(said)
    if moved is not None:
        say(after_move(program, moved.expected, moved.took))
    else:
        for said in lines(program, gain, run.plans_steps):
            say(said)
    if plans.trains(program):
        say(f"measured when the plan was found, {before_this.said}" if before_this else run.losses_said)
        if asked.uses_kept and asked.checks and not (records or before_this or moved or for_another):
            say(NOT_COMPARED)
    if asked.checks and plans.trains(program) and not before_this and for_another:
        say("the first start compared another engine's steps: those of this engine are not compared")
    for said in (places(stages, run.stock_parts), ends(stages, model._grid.pp_group)):
        if said:
            say(said)


def of_another_partition(prepared: Prepared, model: Model) -> str:
    """Where the plan in "output" was compared with stages that DeepSpeed's partition no longer has: a note. All ranks
    must call it."""
    if not prepared.kept:
        return ""
    then = of_rank_0(lambda: stages_of_run(prepared.checked()[1]))
    now = [end - begin for begin, end in pairwise(stock_parts(model))]
    if then in ([], now):
        return ""
    return (
        f'DeepSpeed\'s partition has stages of {"|".join(map(str, now))} layers, and had {"|".join(map(str, then))} when the plan in "output" was '
        f"found: what the plan gains over it is not known; delete {prepared.checked()[1].output} to measure again"
    )


def _run_of(engine: Engine, placed: Placed, prepared: Prepared, kwargs: dict) -> Run:
    """What the engine will know of its plan before it is made. All ranks must call it."""
    (asked, paths), program = prepared.checked(), prepared.program
    assert program is not None
    model, config, rebuilt = kwargs["model"], kwargs["config_class"], placed.rebuilt
    optimizes = bool(kwargs.get("optimizer") or config.optimizer_name)
    groups = given_groups(kwargs.get("optimizer"), kwargs.get("model_parameters"))
    idle = give_idle(model, groups) if optimizes and plans.trains(program) else None
    stock_modules = rebuilt.stock_modules
    return Run(
        section=asked,
        paths=paths,
        placement=prepared.placement,
        profile=prepared.profile,
        program=program,
        stages=placed.stages,
        stock_parts=stock_parts(model),
        stock_names=stock_names(model, stock_modules, NAME)
        if stock_modules
        else names_where_idle(model, idle),
        shards=placed.shards,
        holders=placed.holders,
        parameter_parts=rebuilt.parts,
        copies=rebuilt.copies,
        idle=idle,
        tied_sums=TiedSums(engine, rebuilt.apart) if rebuilt.apart else None,
        programs={program.micro_batches: program},
        configuration=digest_of(config, model),
        dropped_groups=dropped_groups(kwargs.get("optimizer"), kwargs.get("lr_scheduler")),
    )


def digest_of(config: Config, model: Model) -> str:
    """Of DeepSpeed's configuration, without the section, and of how the model recomputes."""
    keys = {key: value for key, value in config._param_dict.items() if key != "ostinato"}
    keys["activation_checkpoint_interval"] = model.activation_checkpoint_interval
    return hashlib.sha256(json.dumps(keys, sort_keys=True, default=str).encode()).hexdigest()


def _keep_outputs_whole(engine: Engine, config: Config) -> None:
    """DeepSpeed's forward pass would otherwise cut its outputs, to send each slice of them once."""
    if (engine.is_pipe_partitioned or engine.is_grad_partitioned) and (
        said := whole_messages(config._param_dict)
    ):
        say(said)
    engine.is_pipe_partitioned = engine.is_grad_partitioned = False


def _speedup(prepared: Prepared, model: Model, here: list[float], gain: Gain) -> Speedup | None:
    """None where steps cannot be compared because shapes change. `here`: seconds of DeepSpeed's own steps that this run
    has timed."""
    (asked, _), program = prepared.checked(), prepared.program
    assert program is not None
    if asked.sizes or model.dynamic_shape or not plans.trains(program):
        return None
    before = here or [gain.measured / 1e9] * bool(gain.measured)
    return Speedup(
        before,
        Expected(gain.step / 1e9, "" if program.whole_step else " without the optimizer"),
        max(WARM_UP, asked.checks),
        partial(second_start.fall_back, prepared) if here and asked.falls_back else None,
        partial(second_start.judge, prepared, verdict.OWN if here else verdict.MEASURE),
    )


def _expected(engine: Engine, run: Run, rebuilt) -> str:
    copies = plans.copies_of(run.stages)
    branches = copies == 1 and not plans.is_chain(run.stages)
    order = run.section.keep_order if run.section.sizes else None
    clipped = _clips_otherwise(engine, rebuilt)
    return expected(
        run.program, _regrouped(engine, rebuilt), clipped, copies, branches, order, _unless(engine, rebuilt)
    )


def _unless(engine: Engine, rebuilt) -> list[str]:
    """What may change losses, of which nothing is known."""
    joined = ["several tied layers use what they now share and is not tied"] * bool(rebuilt.joined)
    unfused = isinstance(engine.optimizer, unfused_optimizer.FP16_UnfusedOptimizer)
    flat = _wraps_optimizer(engine) and not unfused
    kind = type(engine.basic_optimizer)
    known = kind.__name__ in ELEMENTWISE and kind.__module__.startswith(MAKERS)
    if not rebuilt.stock_modules or not flat or known or engine.optimizer is None:
        return joined
    return [
        *joined,
        f"{kind.__name__} updates elements by more than their own gradients: DeepSpeed gives it all parameters of a rank as "
        "one tensor, and layers have moved",
    ]


def _regrouped(engine: Engine, rebuilt) -> list[str]:
    """Keys of tied layers. DeepSpeed's all-reduce over them reads .grad: what it keeps elsewhere it never adds."""
    added = place_of_gradients(engine) != "grad_accum"
    return rebuilt.regrouped if added else sorted({*rebuilt.regrouped, *chain(*rebuilt.apart.values())})


def _clips_otherwise(engine: Engine, rebuilt) -> bool:
    """Whether the optimizer (ZeRO or half precision) clips by a norm that is summed rank by rank; see clipping
    for other optimizers."""
    return bool(rebuilt.stock_modules and _wraps_optimizer(engine) and engine.gradient_clipping() > 0)


def _wraps_optimizer(engine: Engine) -> bool:
    """Whether DeepSpeed steps by an optimizer around the script's (ZeRO or half precision)."""
    return engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
