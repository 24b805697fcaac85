# SPDX-License-Identifier: Apache-2.0
"""Places the layers of a PipelineModule as a plan asks, at the end of its constructor.

    place(model, {"plan": "plan.json"}, file=None)      # all ranks, before the script sees the model
    placed_of(model)                                    # Placed; None where DeepSpeed's own partition holds

So whatever a script does to the model afterwards (optimizers, hooks, adapters, references to layers) it does
to the layers that train. deepspeed.initialize() checks that configuration and plan fit, and makes the engine
(start).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepspeed.accelerator import get_accelerator
from ostinato.groups import everyones
from ostinato.profile.model.model_digest import digest_of_layers
from ostinato.ranks import again, cores
from ostinato.restrictions import Restriction

from . import model_identity
from ..data import step_plans
from ..section import kept, plans
from ..section.agreement import Statement, agree, of_rank_0, versions
from ..tell.announce import say
from ..section.config import Paths, Section, parse_section, resolve
from ..errors import OstinatoError, OtherModel, Unsupported
from .experts import refuse_experts_apart
from ..stages.idle import give_idle
from .rebuild import Rebuilt, rebuild
from .tied import Holders, fixed_layers, holders_of
from ..section.kept import Size
from ..section.search import costs_in, kept_plan, texts_of
from ..stages.sharding import check_layers, shards_of
from ..upstream import Model

if TYPE_CHECKING:
    from ostinato._plugin import Program

# What must be equal everywhere; files may have different names on each node.
COMPARED = {
    "auto",
    "search",
    "sizes",
    "size",
    "keep_order",
    "effort",
    "timeout_s",
    "require",
    "check",
    "fallback",
    "adapt",
}
KEY = "_ostinato_placed"


@dataclass
class Prepared:
    """What this rank made of its section; fields after the first that failed are None."""

    engine: str = ""  # a name that the engine has in both starts; "": none yet
    micro_batches: int = 0  # a step, as configured: the script may change it (batch_size); 0: not known yet
    section: Section | None = None
    paths: Paths | None = None
    program: "Program | None" = None
    placement: str = ""  # its text, where more plans may be searched for it
    profile: str = ""  # that these plans follow, as text; "": none
    places: list[cores.Place] = field(default_factory=list)  # by rank; known when the ranks have agreed
    error: OstinatoError | None = None
    files: dict[str, str] = field(default_factory=dict)  # texts of a searched plan's files, by name
    kept: bool = False  # an earlier run has left the plan in "output"

    def checked(self) -> tuple[Section, Paths]:
        """For use once all ranks agree that nothing failed."""
        assert self.section is not None and self.paths is not None
        return self.section, self.paths


@dataclass
class Placed:
    """A model with its layers placed as the plan of `prepared` asks."""

    prepared: Prepared
    stages: list[plans.Stage]
    shards: dict
    rebuilt: Rebuilt
    # What DeepSpeed's partition of the layers did not allow, for a search of a plan of another size.
    fixed: list[Restriction]
    holders: Holders  # in DeepSpeed's partition


def placed_of(model) -> Placed | None:
    return vars(model).get(KEY)


def place(model: Model, section: dict, file: str | None) -> None:
    """Leaves the model as DeepSpeed made it where the plan is not known yet, is to be checked against 1F1B
    first, or is not for this model (deepspeed.initialize() says what is wrong). Raises OstinatoError on every
    rank where a layer cannot be moved.
    """
    prepared = Prepared()
    try:
        prepared.section = parse_section(section, file or "DeepSpeed configuration")
        prepared.paths = resolve(prepared.section, file, again.folder_of_first_start())
    except OstinatoError as error:
        prepared.error = error
    asked, paths = prepared.section, prepared.paths
    if asked is not None and paths is not None:
        if not _is_known(asked, paths):
            return
        if paths.plan is not None:
            lower(prepared, paths, model)
    try:
        agreed(prepared, model, made=False)
        if prepared.program is None and not take_kept(prepared, model, made=False):
            return
    except OstinatoError:
        return
    lay_out(prepared, model)


def _is_known(section: Section, paths: Paths) -> bool:
    """Whether the plan is known now, while the model is made, and nothing runs before it."""
    if again.folder_of_first_start() is not None:
        return paths.plan is not None and paths.plan.parent == again.folder_of_first_start()
    return not section.check and (not section.searches or section.placement is not None or section.uses_kept)


def take_kept(prepared: Prepared, model: Model, made: bool = True) -> bool:
    """Takes the plan that an earlier run with "auto" has left for this many ranks and, where their number is
    known, micro-batches; or any plan for a named placement. Returns whether there is one. All ranks must call
    it."""
    size = Size(model.topology().get_dim("pipe"), prepared.micro_batches)
    with kept_plan(*prepared.checked(), size) as found:
        if found is None:
            return False
        lower(prepared, found, model)
        prepared.files, prepared.kept = texts_of(found), prepared.checked()[0].placement is None
    agreed(prepared, model, made=made)
    return True


def make_room(prepared: Prepared, model: Model, in_use: bool) -> bool:
    """Where the plan in "output" is for another model, it is put aside, unless it is `in_use`; one for this model comes back.
    Returns whether there is none for another model. All ranks must call it, before any layer moves."""
    digests = model_identity.together(everyones(model_identity.local_digests(model)), model.topology())
    paths, specs = prepared.checked()[1], model._layer_specs
    other, said = of_rank_0(lambda: _make_room(paths, digests, specs, in_use))
    if said:
        say(said)
    return not other


def _make_room(paths: Paths, digests: dict[int, str], specs: list, in_use: bool) -> tuple[bool, str]:
    """Whether the plan of another model is in the way, and what rank 0 is to say."""
    assert paths.output is not None
    said = []
    if kept.has_kept(paths):
        try:
            program = plans.lower(kept.paths_of_kept(paths))
        except Unsupported:
            raise
        except OstinatoError as error:
            raise OstinatoError(f"{error}; {kept.LEFT.format(paths.output)}") from None
        try:
            plans.check_count(program, plans.stages_of(program), specs)
            model_identity.check(program, digests, specs, made=True)
        except OtherModel as error:
            if in_use:
                return True, ""
            said.append(kept_for_another(paths, program, error))
    if not kept.has_kept(paths) and kept.bring_model_back(
        paths.output, digest_of_layers(digests[index] for index in sorted(digests))
    ):
        said.append(f"the plan for this model is in {paths.output} again")
    return False, "; ".join(said)


def kept_for_another(paths: Paths, program: "Program", error: OtherModel) -> str:
    """Puts the plan in "output" aside, on rank 0; what that was, in words."""
    assert paths.output is not None
    aside = kept.put_model_aside(paths.output, program.model_sha256)
    return f'the plan in "output" ({paths.output}) is for another model ({error.how}): it waits in {aside.name} there for that model'


def lay_out(prepared: Prepared, model: Model) -> Placed:
    """Moves the layers. All ranks must call it, with the same program."""
    assert prepared.program is not None
    stages = plans.wired(plans.stages_of(prepared.program), model._layer_specs)
    timeout_s = prepared.checked()[0].timeout_s
    shards = shards_of(model._grid, stages, timeout_s)
    fixed = fixed_layers(model) if prepared.kept else []
    holders = holders_of(model)
    rebuilt = rebuild(model, stages, shards, timeout_s)
    refuse_experts_apart(model)
    if plans.trains(prepared.program):
        give_idle(model, [])  # a script makes an optimizer on every rank
    made = vars(model)[KEY] = Placed(prepared, stages, shards, rebuilt, fixed, holders)
    return made


def lower(prepared: Prepared, paths: Paths, model: Model) -> None:
    """Sets the program of a plan that fits this model, and the model that it was made for; else the error."""
    try:
        _lower(prepared, paths, model)
    except OstinatoError as error:
        prepared.error = error


def _lower(prepared: Prepared, paths: Paths, model: Model) -> None:
    program, section = plans.lower(paths), prepared.section
    assert section is not None and paths.placement is not None and paths.plan is not None
    if section.sizes:
        step_plans.refuse(program, plans.stages_of(program))
    with plans.naming(section.placement_file):
        plans.check_shape(program, model.topology().get_dim("pipe"), model._layer_specs)
    check_layers(model._layer_specs, plans.stages_of(program))
    if section.searches or section.sizes:
        prepared.placement = paths.placement.read_text()
    if section.sizes:
        prepared.profile = costs_in(paths.sizes)
    prepared.program = program


def agreed(prepared: Prepared, model: Model, configuration: str = "", made: bool = True) -> None:
    """Raises the same error on every rank where one cannot run, where they differ, and where the plan is for a
    different model. `configuration`: what must be equal in DeepSpeed's own, one key per line; `made`: the
    script has finished the model.
    """
    timeout_s = (prepared.section or Section.model_construct(plan="")).timeout_s
    everyone = agree(_statement(prepared, model, configuration), timeout_s)
    prepared.places = [cores.Place(*statement.place) for statement in everyone]
    if prepared.program is None:
        return
    digests = model_identity.together([statement.layers for statement in everyone], model.topology())
    note = model_identity.check(prepared.program, digests, model._layer_specs, made)
    # A search in this run counts shared cores, and writes no hosts where layers wait or sleep more than they
    # compute.
    counted = prepared.program.counts_hosts or prepared.checked()[0].searches
    for said in (note, "" if placed_of(model) else cores.note(prepared.places, counted)):
        if said:
            say(said)


def _statement(prepared: Prepared, model: Model, configuration: str) -> Statement:
    error, program = prepared.error, prepared.program
    return Statement(
        version=versions(),
        plan=program.plan_sha256 if program else "",
        placement=program.placement_sha256 if program else "",
        model="\n".join(model_identity.names_of(model)),
        layers=model_identity.local_digests(model),
        options=prepared.section.model_dump_json(include=COMPARED) if prepared.section else "",
        configuration=configuration,
        place=cores.here(get_accelerator().device_name() == "cpu"),
        error="" if error is None or isinstance(error, Unsupported) else str(error),
        unsupported=str(error) if isinstance(error, Unsupported) else "",
    )
