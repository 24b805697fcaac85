# SPDX-License-Identifier: Apache-2.0
"""From the section to an engine, in PipelineEngine's constructor. Errors come before step 1, and are the same on
every rank.

Where the layers are already placed for the plan (placing), or need not move, the engine runs the plan. Where
the plan is known only now ("profile", or a "plan" in a dictionary that was made after the model), all ranks
start again with it (again), once. "auto" and "check" make DeepSpeed's own engine first, which measures, and then
all ranks start again (first_pass).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, pairwise

import torch.distributed as dist
from ostinato.ranks import again, cores
from ostinato.gain import WARM_UP, Gain
from ostinato.groups import everyones
from ostinato.restrictions import Restriction
from ostinato.ranks.last_words import speak_last
from ostinato.ranks.starting import starting
from pydantic import BaseModel

from . import first_pass, second_start
from ..place import model_identity
from ..save import checkpoint, universal
from ..save.partition import stock_names
from ..section import MADE, plans, verdict
from ..section.agreement import FileFault, of_rank_0
from ..tell.drift import EVERY, SAMPLED, BlockTimes, Drift
from ..equal.random_numbers import draws_elsewhere
from ..tell.announce import after_move, ends, expected, gain_of, lines, places, say
from ..tell.speedup import Expected, GivenUp, Speedup, follow
from ..section.config import Search as SearchOptions, Section, check_outputs, parse_section, resolve
from ..engine.adapt import Adapt
from ..engine.clipping import even_groups
from ..engine.engine import PlanEngine, become
from ..engine.learning_rates import dropped_groups
from ..errors import NoPlan, OstinatoError, OtherModel, Unsupported
from ..stages.copies import place_of_gradients
from ..stages.idle import NAME, give_idle, given_groups, names_where_idle
from ..stages.tied_sums import TiedSums
from ..place.experts import spread_experts
from ..place.placing import Placed, Prepared, agreed, lay_out, lower, make_room, placed_of, take_kept
from ..place.rebuild import moves
from ..place.tied import fixed_layers
from ..randomness.random_state import Drawing
from ..section.refusals import (
    check_allowed,
    check_lanes,
    check_offloads,
    check_run,
    check_slices,
    check_trained,
    refuse_passes,
    restrictions_of,
    untried_version,
)
from ..section.refused_keys import untried_keys, whole_messages
from ..engine.run import Run
from ..section.kept import LEFT, Size, profile_for, stages_of_run, verdict_on_kept
from ..section.search import shared_plan, texts_of
from ..data.sizes import size_function
from ..upstream import Config, Engine, Model, stock_parts

# Parts of DeepSpeed's configuration that decide which collectives a rank runs, and on what: where they differ
# between ranks, DeepSpeed hangs.
COLLECTIVE = (
    "zero_config",
    "gradient_clipping",
    "float16_config",
    "bfloat16_config",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
)

ALONE = "the run goes on under DeepSpeed's own schedule"

NOT_FOR_THIS = "the plan is not for this model, which runs under DeepSpeed's own schedule"

_with_kept: list[str] = []  # engines of this process that run the plan in "output"
_engines: Counter[str] = Counter()  # of this process, by their models (MADE), which may be copied


def start(
    engine: Engine, original_init: Drawing, section: dict, file: str | None, args: tuple, kwargs: dict
) -> None:
    """Replaces PipelineEngine.__init__. Raises OstinatoError on every rank where the plan cannot run."""
    speak_last()
    _tell_untried_version()
    model, config = kwargs["model"], kwargs["config_class"]
    if said := untried_keys(config._param_dict):
        say(said)
    if why := second_start.goes_without():
        say(f"{why}; {ALONE}", newlines=True)
        _alone(engine, original_init, args, kwargs)
        if seconds := second_start.given_up(_named(model)):
            follow(engine, GivenUp(seconds, WARM_UP, second_start.forget))
        return
    prepared = _prepare(section, file, model, config)
    if (
        prepared.section is not None
        and prepared.section.auto
        and second_start.for_another(prepared)
        and placed_of(model) is None
    ):
        say(NOT_FOR_THIS)
        return original_init(engine, *args, **kwargs)
    try:
        agreed(prepared, model, "\n".join(_collective(config)))
        with starting("making its engine", range(dist.get_world_size()), prepared.checked()[0].timeout_s):
            _make(engine, original_init, prepared, args, kwargs)
    except (Unsupported, NoPlan) as error:
        _without_plan(error, engine, original_init, prepared, args, kwargs)
    except OstinatoError as error:
        left = prepared.kept and prepared.paths is not None
        if left and isinstance(error, OtherModel) and not _with_kept:
            second_start.begin_anew(prepared, error)
        if type(error) is not OtherModel and not (left and type(error) in (OstinatoError, FileFault)):
            raise
        more = f"; {LEFT.format(prepared.checked()[1].output)}" if left else ""
        raise OstinatoError(f"{error}{more}") from None


def _make(engine: Engine, original_init: Drawing, prepared: Prepared, args: tuple, kwargs: dict) -> None:
    """Called after all checks that need no search."""
    model, config, asked = kwargs["model"], kwargs["config_class"], prepared.checked()[0]
    refuse_passes(type(engine))
    first, placed = second_start.is_first(), placed_of(model)
    if first and asked.uses_kept and not _is_placed_for(prepared, placed):
        if placed is None and not make_room(prepared, model, in_use=bool(_with_kept)):
            say(NOT_FOR_THIS)
            return original_init(engine, *args, **kwargs)
        if _stays_without(prepared, model):
            return _alone(engine, original_init, args, kwargs)
        if not take_kept(prepared, model):
            _search_again(prepared, model, config, type(engine))
    if asked.searches and not asked.auto and prepared.program is None:
        search(prepared, model, config, type(engine))
    if (program := prepared.program) is not None:
        plans.check_micro_batches(program, prepared.micro_batches)
        check_allowed(program, plans.stages_of(program), restrictions_of(model, type(engine), asked))
    if first and placed is None and (asked.check or program is None):
        return first_pass.begin(engine, original_init, prepared, search, args, kwargs)
    placed = _place_late(prepared, model, placed, original_init.states)
    _install(engine, original_init, placed, prepared, args, kwargs)


def _is_placed_for(prepared: Prepared, placed: Placed | None) -> bool:
    """Whether the model was laid out as it was made, and, where the plan was in "output", for this number of
    micro-batches, which was not known then."""
    if placed is None or prepared.program is None:
        return placed is not None
    return not prepared.kept or prepared.program.micro_batches == prepared.micro_batches


def _stays_without(prepared: Prepared, model: Model) -> bool:
    """Whether an earlier run has found out that its plan gains nothing. All ranks must call it."""
    asked, paths = prepared.checked()
    size = Size(model.topology().get_dim("pipe"), prepared.micro_batches)
    told = of_rank_0(lambda: verdict_on_kept(asked, paths, size))
    if told is None:
        return False
    then, why = told
    instead = f"{ALONE}: delete {verdict.VERDICT} there to run the plan, or the folder to measure again"
    stays = then == verdict.OWN
    say(f"the plan in {paths.output} is not used ({why}); {instead if stays else 'measuring again'}")
    return stays


def _search_again(prepared: Prepared, model: Model, config: Config, engine: type) -> None:
    """Searches with an earlier run's measurements, where its plan is for a different number of ranks or micro-batches,
    or was searched with different options."""
    asked, paths = prepared.checked()
    size = Size(model.topology().get_dim("pipe"), prepared.micro_batches)
    found = of_rank_0(lambda: profile_for(asked, paths, size))
    if found is None:
        return
    why, profile = found
    say(f'the plan in "output" ({paths.output}) {why}: searching again with the profile there')
    prepared.paths, prepared.kept = paths.model_copy(update={"profile": profile}), True
    search(prepared, model, config, engine)


def _place_late(prepared: Prepared, model: Model, placed: Placed | None, states: tuple) -> Placed:
    """The script already has the model: if layers must move, all ranks start again. `placed`: how they lie."""
    program = prepared.program
    stages = plans.wired(plans.stages_of(program), model._layer_specs)
    if placed is not None:
        there = placed.prepared.program
        if there is not None and program is not None and there.placement_sha256 == program.placement_sha256:
            return placed
        second_start.begin(prepared)
    if moves(model, stages):
        second_start.keep(prepared, model, states)
        second_start.begin(prepared)
    return lay_out(prepared, model)


@cache
def _tell_untried_version() -> None:
    """Once per process."""
    import deepspeed

    if said := untried_version(deepspeed.__version__):
        say(said)


def _alone(engine: Engine, original_init, args: tuple, kwargs: dict) -> None:
    """DeepSpeed's own engine, which loads the optimizer state of any placement: an earlier run may have had a plan."""
    vars(engine)[checkpoint.ALONE] = True
    original_init(engine, *args, **kwargs)


def _without_plan(
    error: OstinatoError,
    engine: Engine,
    original_init: Drawing,
    prepared: Prepared,
    args: tuple,
    kwargs: dict,
) -> None:
    """Where the section allows it, makes DeepSpeed's own engine; if layers have already moved, after a second
    start."""
    why = second_start.why_without(prepared, error)
    if placed_of(kwargs["model"]) is not None:
        second_start.begin_without(prepared, error)
    say(f"{why}; {ALONE}", newlines=True)
    _alone(engine, original_init, args, kwargs)


def _install(
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
        _of_another_partition(prepared, model),
    ]
    for said in filter(None, notes):
        say(said)
    if prepared.kept:
        _with_kept.append(prepared.engine)
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
    restrictions = _restrictions(model, type(engine), asked) if asked.adapt is not None else []
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
    if asked.checks and plans.trains(program) and not before_this and second_start.for_another(prepared):
        say("the first start compared another engine's steps: those of this engine are not compared")
    for said in (places(stages, run.stock_parts), ends(stages, model._grid.pp_group)):
        if said:
            say(said)


def _of_another_partition(prepared: Prepared, model: Model) -> str:
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
        parameter_parts=rebuilt.parts,
        copies=rebuilt.copies,
        idle=idle,
        tied_sums=TiedSums(engine, rebuilt.apart) if rebuilt.apart else None,
        programs={program.micro_batches: program},
        configuration=_digest_of(config, model),
        dropped_groups=dropped_groups(kwargs.get("optimizer"), kwargs.get("lr_scheduler")),
    )


def _digest_of(config: Config, model: Model) -> str:
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
        run.program, _regrouped(engine, rebuilt), clipped, copies, branches, order, bool(rebuilt.joined)
    )


def _regrouped(engine: Engine, rebuilt) -> list[str]:
    """Keys of tied layers. DeepSpeed's all-reduce over them reads .grad: what it keeps elsewhere it never adds."""
    added = place_of_gradients(engine) != "grad_accum"
    return rebuilt.regrouped if added else sorted({*rebuilt.regrouped, *chain(*rebuilt.apart.values())})


def _named(model: Model) -> str:
    """A name for the model's engine, the same in both starts."""
    made = getattr(model, MADE, "")
    _engines[made] += 1
    return hashlib.sha256(f"{_engines[made]} {made}".encode()).hexdigest()[:16]


def _prepare(section: dict, file: str | None, model: Model, config: Config) -> Prepared:
    """Makes all checks that one rank can make by itself, and the program of a named plan."""
    made, placed = Prepared(_named(model), config.gradient_accumulation_steps), placed_of(model)
    try:
        made.section = parse_section(section, file or "DeepSpeed configuration")
        check_run(model, config)
        made.paths = resolve(made.section, file, again.folder_of_first_start())
        if made.section.sizes:
            check_slices(model)
            size_function(made.section.sizes)
            _check_shapes(made.section, model)
        check_outputs(made.paths, dist.get_rank())
        if made.paths.plan is not None:
            lower(made, made.paths, model)
        if placed is not None:
            _take_placed(made, placed)
        if made.program is not None and made.error is None and not made.kept:
            with plans.naming(made.section.plan):
                plans.check_micro_batches(made.program, config.gradient_accumulation_steps)
    except OstinatoError as error:
        made.error = error
    return made


def _take_placed(made: Prepared, placed: Placed) -> None:
    """Takes the plan for which the model was placed: this run's, or any plan for the same placement."""
    given, there = made.program, placed.prepared.program
    assert there is not None and made.section is not None
    if given is None and not (made.section.searches and made.section.placement):
        made.program, made.kept = there, placed.prepared.kept
        made.placement, made.profile = placed.prepared.placement, placed.prepared.profile
    elif given is not None and given.placement_sha256 != there.placement_sha256:
        raise OstinatoError(
            f'PipelineModule placed its layers for placement "{there.placement_name}", but this configuration\'s section names a plan on '
            f'"{given.placement_name}": name the same plan in both, or, for models with a plan each, make each model and its engine in its own '
            '"with ostinato.deepspeed.enable(...)"'
        )


def _check_shapes(section: Section, model: Model) -> None:
    if section.auto and not model.dynamic_shape:
        raise OstinatoError(
            '"auto" with "sizes" in the "ostinato" section measures the first step under DeepSpeed\'s own 1F1B, which needs '
            "PipelineModule(dynamic_shape=True) where shapes differ"
        )


def _restrictions(model: Model, engine: type, asked: Section) -> list[Restriction]:
    """What plans of this run obey. All ranks must call it."""
    made = restrictions_of(model, engine, asked)
    if not asked.placement:
        placed = placed_of(model)
        fixed = fixed_layers(model) if placed is None else placed.fixed
        made += dict.fromkeys(one for of_rank in everyones(fixed) for one in of_rank)
        made += spread_experts(model)
    return made


def search(prepared: Prepared, model: Model, config: Config, engine: type) -> None:
    """Searches a program that this model and engine class can run; afterwards all ranks hold it."""
    asked, given = prepared.checked()
    pipeline = tuple(model._grid.pp_group)
    restrictions = _restrictions(model, engine, asked)
    hosts = cores.hosts(prepared.places, pipeline)
    size = Size(len(pipeline), prepared.micro_batches, hosts, restrictions)
    with shared_plan(asked, given, size) as paths:
        lower(prepared, paths, model)
        prepared.files = texts_of(paths)
    agreed(prepared, model, "\n".join(_collective(config)))


def _collective(config: Config) -> Iterator[str]:
    for name in COLLECTIVE:
        value = getattr(config, name, None)
        fields = value if isinstance(value, BaseModel) else [("", value)]  # by name
        yield from (
            f"{name}{key and '.'}{key}: {held}" for key, held in fields if not key.startswith("offload_")
        )  # those name folders


def _clips_otherwise(engine: Engine, rebuilt) -> bool:
    """Whether the optimizer (ZeRO or half precision) clips by a norm that is summed rank by rank; see clipping
    for other optimizers."""
    own = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
    return bool(rebuilt.stock_modules and own and engine.gradient_clipping() > 0)
