# SPDX-License-Identifier: Apache-2.0
"""From the section to an engine that runs the plan. What goes wrong does so before step 1, on every rank alike."""

import importlib.metadata
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from ostinato.errors import printable
from ostinato.files import write_text
from ostinato.ranks import cores
from ostinato.ranks.starting import starting
from pydantic import BaseModel

from . import auto, loss_state, model_identity, plans, step_plans, universal
from .agreement import Statement, agree
from .announce import difference, line
from .claims import Claim, cuts_otherwise, draws_otherwise
from .config import Paths, Section, check_outputs, parse_section, resolve
from .engine import Run, become_plan_engine
from .errors import OstinatoError, Unsupported
from .experts import refuse_experts_apart
from .idle import give_idle, names_where_idle
from .last_words import speak_last
from .late_changes import check_classes
from .optimizers import coupling
from .parameter_groups import GroupMap, refuse_uneven
from .rebuild import rebuild
from .refusals import check_run, untried_version
from .refused_keys import untried_keys
from .search import Size, shared_plan
from .sharding import check_layers, shards_of
from .sizes import size_function
from .upstream import Config, Engine, Model

if TYPE_CHECKING:
    from ostinato._plugin import Program

# What must be equal everywhere; files may have other names on other nodes.
COMPARED = {"auto", "search", "sizes", "size", "keep_order", "effort", "read_ahead", "timeout_s", "require"}


# Of DeepSpeed's configuration, what decides in which collectives a rank takes part, and with what: where it differs DeepSpeed waits for ever.
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


@dataclass
class Prepared:
    """What this rank could make of its section; fields after the first that failed are None."""

    section: Section | None = None
    paths: Paths | None = None
    program: "Program | None" = None
    placement: str = ""  # its text, where steps have plans of their own
    measured: str = ""  # what the profile says of micro-batches of several sizes, as JSON; "": nothing
    profiled: model_identity.Profiled = field(default_factory=model_identity.Profiled)  # the model that it was made for
    places: list[cores.Place] = field(default_factory=list)  # by rank; known when the ranks have agreed
    error: OstinatoError | None = None
    engines: dict = field(default_factory=dict)  # "auto": by unit (rebuild), what DeepSpeed's own engine did to its layer

    def checked(self) -> tuple[Section, Paths]:
        """Once all ranks agree: nothing failed."""
        assert self.section is not None and self.paths is not None
        return self.section, self.paths


def start(engine: Engine, original_init, section: dict, file: str | None, args: tuple, kwargs: dict) -> None:
    """Stands in for PipelineEngine.__init__. Raises OstinatoError on every rank where the plan cannot run."""
    speak_last()
    _tell_untried_version()
    model, config = kwargs["model"], kwargs["config_class"]
    if dist.get_rank() == 0 and (said := untried_keys(config._param_dict)):
        print(f"ostinato: {printable(said)}", flush=True)
    prepared = _prepare(section, file, model, config, type(engine))
    try:
        _agree(prepared, model, config)
    except Unsupported as error:
        return _without_plan(error, engine, original_init, prepared, args, kwargs)
    with starting("making its engine", range(dist.get_world_size()), prepared.checked()[0].timeout_s):
        _make(engine, original_init, prepared, args, kwargs)


def _make(engine: Engine, original_init, prepared: Prepared, args: tuple, kwargs: dict) -> None:
    """After what can be found wrong before a search has been."""
    try:
        if prepared.checked()[0].searches:
            _search_plan(prepared, kwargs["model"], kwargs["config_class"])
    except Unsupported as error:
        return _without_plan(error, engine, original_init, prepared, args, kwargs)
    if prepared.program is None:
        again = partial(_start_measured, original_init, prepared, args, kwargs)
        shares, section = bool(cores.sharing(prepared.places)), prepared.checked()[0]
        prepared.engines = auto.begin(engine, original_init, again, shares, section, args, kwargs)
    else:
        _install(engine, original_init, prepared, args, kwargs)


@cache
def _tell_untried_version() -> None:
    """Once a process."""
    import deepspeed

    if dist.get_rank() == 0 and (said := untried_version(deepspeed.__version__)):
        print(f"ostinato: {said}", flush=True)


def _start_measured(original_init, prepared: Prepared, args: tuple, kwargs: dict, engine: Engine, profile: str, left: str) -> None:
    """start() once more for "auto", with the text of a profile on rank 0. `left`: as in Claim."""
    model, config = kwargs["model"], kwargs["config_class"]
    with tempfile.TemporaryDirectory() as temporary:
        paths = prepared.checked()[1]
        measured = (paths.output or Path(temporary)) / "profile.json"
        if profile:
            write_text(measured, profile)
        prepared.paths = paths.model_copy(update={"profile": measured})
        try:
            _search_plan(prepared, model, config)
        except Unsupported as error:
            return _without_plan(error, engine, original_init, prepared, args, kwargs)
    _install(engine, original_init, prepared, args, kwargs, left)


def _without_plan(error: Unsupported, engine: Engine, original_init, prepared: Prepared, args: tuple, kwargs: dict) -> None:
    """Where the section allows it, the engine that DeepSpeed would have made."""
    if prepared.section is None or prepared.section.require:
        raise error
    if dist.get_rank() == 0:
        print(f"ostinato: {printable(str(error), newlines=True)}; the run goes on under DeepSpeed's own schedule", flush=True)
    original_init(engine, *args, **kwargs)


def _install(engine: Engine, original_init, prepared: Prepared, args: tuple, kwargs: dict, left: str = "") -> None:
    """Makes `engine` one that runs the program that all ranks have agreed on. All ranks must call it."""
    model, config, (asked, paths), program = kwargs["model"], kwargs["config_class"], prepared.checked(), prepared.program
    assert program is not None
    stages = plans.wired(plans.stages_of(program), model._layer_specs)
    shards = shards_of(model._grid, stages, asked.timeout_s)
    groups = GroupMap(kwargs.get("optimizer"), kwargs.get("model_parameters"))
    optimizes = bool(kwargs.get("optimizer") or config.optimizer_name)
    rebuilt = rebuild(model, stages, groups, shards, prepared.engines)
    loss_state.hand_on(model, stages)
    idle = give_idle(model, groups.groups) if optimizes and plans.trains(program) else None
    if rebuilt.moved:
        _flag_parameters(config, model)
    refuse_experts_apart(model)
    stock = model.partitions()
    names = rebuilt.moved or names_where_idle(model, idle)
    run = Run(program, stages, stock, names, asked, paths, shards, rebuilt.parts, rebuilt.copies, idle)
    run.placement, run.measured = prepared.placement, prepared.measured
    become_plan_engine(engine, run)
    original_init(engine, *args, **kwargs)
    refuse_uneven(engine)
    copies = plans.copies_of(stages)
    branches = copies == 1 and not plans.is_chain(stages)
    order = asked.keep_order if asked.sizes else None
    differs = difference(program, rebuilt.regrouped, _clips_otherwise(engine, rebuilt), copies, branches, order)
    others_name = rebuilt.copies.others_name if rebuilt.copies else lambda _: False
    universal.prepare(engine, rebuilt.parts, others_name)
    claim = _claim(program, stages, stock, differs, model, moves=asked.sizes is not None)
    claim = replace(claim, coupling=coupling(engine) if rebuilt.moved and plans.trains(program) else "", left=left)
    claim = engine.ostinato_begin(claim)  # type: ignore[attr-defined]  # it has become a PlanEngine
    run.equality.doubt([f"{note}: what reads it has other numbers" for note in rebuilt.notes])
    if dist.get_rank() == 0:
        for said in (*map("ostinato: {}".format, rebuilt.notes), line(program, claim.before(), run.plans_steps)):
            print(printable(said), flush=True)


def _claim(program, stages: list, stock: list[int], differs: str, model: Model, moves: bool) -> Claim:
    """What is known before step 1; where layers seed themselves, they draw the same numbers wherever they run. `moves`: forwards run in
    another order each step.
    """
    if not plans.trains(program):
        return Claim()
    elsewhere = moves or draws_otherwise(program, stages, lambda layer: bisect_right(stock, layer) - 1)
    return Claim(differs, cuts_otherwise(program, stages, stock), elsewhere and not model.seed_layers)


def _prepare(section: dict, file: str | None, model: Model, config, kind: type) -> Prepared:
    """Everything that one rank can find wrong by itself, and the program of a plan that is named. `kind`: class of the engine."""
    made = Prepared()
    try:
        made.section = parse_section(section, file or "DeepSpeed configuration")
        check_run(model, config)
        check_classes(model, kind)
        made.paths = resolve(made.section, file)
        if made.section.sizes:
            size_function(made.section.sizes)
            _check_shapes(made.section, model)
        check_outputs(made.paths, dist.get_rank())
        if not made.section.searches:
            _lower(made, made.paths, model, config)
    except OstinatoError as error:
        made.error = error
    return made


def _check_shapes(section: Section, model: Model) -> None:
    if section.auto and not model.dynamic_shape:
        raise OstinatoError(
            '"auto" with "sizes" in the "ostinato" section measures the first step under DeepSpeed\'s own 1F1B, whose shapes may differ where '
            "PipelineModule says so: dynamic_shape=True"
        )


def _lower(prepared: Prepared, paths: Paths, model: Model, config) -> None:
    """The program of a plan that fits this run, and the model that it was made for."""
    program, section = plans.lower(paths), prepared.section
    assert section is not None and paths.placement is not None and paths.plan is not None
    if section.sizes:
        step_plans.refuse(program, plans.stages_of(program), paths.plan.read_text())
    pipeline_ranks = model.topology().get_dim("pipe")
    plans.check_shape(program, config.gradient_accumulation_steps, pipeline_ranks, model._layer_specs)
    stages = plans.stages_of(program)
    check_layers(model._layer_specs, stages)
    if section.sizes:
        prepared.placement = paths.placement.read_text()
        prepared.measured = paths.sizes.read_text() if paths.sizes else ""
    prepared.program, prepared.profiled = program, model_identity.read(paths.placement)


def _search_plan(prepared: Prepared, model: Model, config) -> None:
    """All ranks hold the same searched program afterwards, or none where "auto" has not measured yet."""
    pipeline = tuple(model._grid.pp_group)
    size = Size(len(pipeline), config.gradient_accumulation_steps, cores.hosts(prepared.places, pipeline))
    with shared_plan(*prepared.checked(), size) as paths:
        if paths is None:
            return
        try:
            _lower(prepared, paths, model, config)
        except OstinatoError as error:
            prepared.error = error
    _agree(prepared, model, config)


def _agree(prepared: Prepared, model: Model, config: Config) -> None:
    """Raises the same on every rank where one cannot run, where they differ, and where the plan is for another model."""
    timeout_s = (prepared.section or Section.model_construct(plan="")).timeout_s
    everyone = agree(_statement(prepared, model, config), timeout_s)
    prepared.places = [cores.Place(*statement.place) for statement in everyone]
    digests = model_identity.together([statement.layers for statement in everyone])
    if prepared.program is None:
        return
    note = model_identity.check(prepared.profiled, prepared.program.placement_name, digests, model._layer_specs)
    # What is searched here counts the sharing, and writes no hosts where layers wait or sleep more than they compute.
    counted = prepared.profiled.shares_cores or prepared.checked()[0].searches
    sizes = model_identity.size_note(prepared.profiled, config.train_micro_batch_size_per_gpu)
    for said in (note, sizes, cores.note(prepared.places, counted)):
        if said and dist.get_rank() == 0:
            print(f"ostinato: {printable(said)}", flush=True)


def _statement(prepared: Prepared, model: Model, config: Config) -> Statement:
    error = prepared.error
    program = prepared.program
    return Statement(
        version=_versions(),
        plan=program.plan_sha256 if program else "",
        placement=program.placement_sha256 if program else "",
        model="\n".join(model_identity.names_of(model)),
        layers=model_identity.local_digests(model),
        options=prepared.section.model_dump_json(include=COMPARED) if prepared.section else "",
        configuration="\n".join(_collective(config)),
        place=cores.here(get_accelerator().device_name() == "cpu"),
        error="" if error is None or isinstance(error, Unsupported) else str(error),
        unsupported=str(error) if isinstance(error, Unsupported) else "",
    )


def _collective(config: Config) -> Iterator[str]:
    for name in COLLECTIVE:
        value = getattr(config, name, None)
        fields = value if isinstance(value, BaseModel) else [("", value)]  # by name
        yield from (f"{name}{key and '.'}{key}: {held}" for key, held in fields if not key.startswith("offload_"))  # which name folders


def _versions() -> str:
    import deepspeed
    import torch

    try:
        own = importlib.metadata.version("ostinato")
    except importlib.metadata.PackageNotFoundError:
        own = "of a build tree"
    return f"ostinato {own}, torch {torch.__version__}, DeepSpeed {deepspeed.__version__}"


def _clips_otherwise(engine: Engine, rebuilt) -> bool:
    """ZeRO and the half-precision optimizers clip by a norm that is summed rank by rank; see clipping for the others."""
    own = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
    return bool(rebuilt.moved and own and engine.gradient_clipping() > 0)


def _flag_parameters(config, model: Model) -> None:
    """deepspeed.initialize() has flagged the parameters of the layers that left; those that arrived need it too."""
    from deepspeed import set_optimizer_flags

    set_optimizer_flags(config, model)
