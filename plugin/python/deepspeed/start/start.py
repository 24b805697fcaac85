# SPDX-License-Identifier: Apache-2.0
"""From the section to an engine, in PipelineEngine's constructor. Errors come before step 1, and are the same on
every rank.

Where the layers are already placed for the plan (placing), or need not move, the engine runs the plan. Where
the plan is known only now ("profile", or a "plan" in a dictionary that was made after the model), all ranks
start again with it (again), once. "auto" and "check" make DeepSpeed's own engine first, which measures, and then
all ranks start again (first_pass).
"""

from functools import cache

import torch.distributed as dist
from ostinato.gain import WARM_UP
from ostinato.ranks.last_words import speak_last
from ostinato.ranks.starting import starting

from . import first_pass, second_start
from .install import install, with_kept
from .prepare import collective, named, prepare, search
from ..save import checkpoint
from ..section import plans, verdict
from ..section.agreement import FileFault, of_rank_0
from ..tell.announce import say
from ..tell.speedup import GivenUp, follow
from ..errors import NoPlan, OstinatoError, OtherModel, Unsupported
from ..place.placing import Placed, Prepared, agreed, lay_out, make_room, placed_of, take_kept
from ..place.rebuild import moves
from ..randomness.random_state import Drawing
from ..section.refusals import check_allowed, refuse_passes, restrictions_of, untried_version
from ..section.refused_keys import untried_keys
from ..section.kept import LEFT, Size, profile_for, verdict_on_kept
from ..upstream import Config, Engine, Model

ALONE = "the run goes on under DeepSpeed's own schedule"

NOT_FOR_THIS = "the plan is not for this model, which runs under DeepSpeed's own schedule"


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
        if seconds := second_start.given_up(named(model)):
            follow(engine, GivenUp(seconds, WARM_UP, second_start.forget))
        return
    prepared = prepare(section, file, model, config)
    if (
        prepared.section is not None
        and prepared.section.auto
        and second_start.for_another(prepared)
        and placed_of(model) is None
    ):
        say(NOT_FOR_THIS)
        return original_init(engine, *args, **kwargs)
    try:
        agreed(prepared, model, "\n".join(collective(config)))
        with starting("making its engine", range(dist.get_world_size()), prepared.checked()[0].timeout_s):
            _make(engine, original_init, prepared, args, kwargs)
    except (Unsupported, NoPlan) as error:
        _without_plan(error, engine, original_init, prepared, args, kwargs)
    except OstinatoError as error:
        left = prepared.kept and prepared.paths is not None
        if left and isinstance(error, OtherModel) and not with_kept:
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
        if placed is None and not make_room(prepared, model, in_use=bool(with_kept)):
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
    install(engine, original_init, placed, prepared, args, kwargs)


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
