# SPDX-License-Identifier: Apache-2.0
"""What a start needs before it makes an engine: the section and its files checked on every rank, and the program of a
plan that is named or searched."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import torch.distributed as dist
from ostinato.ranks import again, cores
from ostinato.groups import everyones
from ostinato.restrictions import Restriction
from pydantic import BaseModel

from ..section import MADE, plans
from ..section.config import Section, check_outputs, parse_section, resolve
from ..errors import OstinatoError
from ..place.experts import spread_experts
from ..place.placing import Placed, Prepared, agreed, lower, placed_of
from ..place.tied import fixed_layers
from ..section.refusals import check_run, check_slices, restrictions_of
from ..section.kept import Size
from ..section.search import shared_plan, texts_of
from ..data.sizes import size_function
from ..upstream import Config, Model


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

_engines: Counter[str] = Counter()  # of this process, by their models (MADE), which may be copied


def prepare(section: dict, file: str | None, model: Model, config: Config) -> Prepared:
    """Makes all checks that one rank can make by itself, and the program of a named plan."""
    made, placed = Prepared(named(model), config.gradient_accumulation_steps), placed_of(model)
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


def named(model: Model) -> str:
    """A name for the model's engine, the same in both starts."""
    made = getattr(model, MADE, "")
    _engines[made] += 1
    return hashlib.sha256(f"{_engines[made]} {made}".encode()).hexdigest()[:16]


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


def restrictions_here(model: Model, engine: type, asked: Section) -> list[Restriction]:
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
    restrictions = restrictions_here(model, engine, asked)
    hosts = cores.hosts(prepared.places, pipeline)
    size = Size(len(pipeline), prepared.micro_batches, hosts, restrictions)
    with shared_plan(asked, given, size) as paths:
        lower(prepared, paths, model)
        prepared.files = texts_of(paths)
    agreed(prepared, model, "\n".join(collective(config)))


def collective(config: Config) -> Iterator[str]:
    for name in COLLECTIVE:
        value = getattr(config, name, None)
        fields = value if isinstance(value, BaseModel) else [("", value)]  # by name
        yield from (
            f"{name}{key and '.'}{key}: {held}" for key, held in fields if not key.startswith("offload_")
        )  # those name folders
