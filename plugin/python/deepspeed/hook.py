# SPDX-License-Identifier: Apache-2.0
"""Wraps DeepSpeed's PipelineModule and engines so that they obey the "ostinato" section. Imports little but the
standard library: a run without the section pays for a dictionary look-up when its model and its engine are made.
Otherwise it runs as without ostinato, except where it meets a plan's checkpoint: it loads none that is torn, and
no optimizer state or learning rates of layers that its ranks do not hold, and clears one before it saves over it.

When a PipelineModule is made, the section is known from enable(), from the environment variable, or from
--deepspeed_config in the arguments: then the layers are built where the plan places them (placing). When the
engine is made, it is known from the configuration.
"""

import functools
import inspect
import json
import os
import sys
from base64 import urlsafe_b64decode
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ostinato.files import no_file

from .errors import PLACED, OstinatoError
from .section import MADE, SECTION_FILE, UNPLANNED, VARIABLE, models, unplanned

SECTION = "ostinato"
OFF = "ostinato_off"  # keeps a section without using it
WANTED = "give a plan.json, a ds_config.json with the section, or the section as JSON"

Known = tuple[dict | None, str | None]  # a section, and the file that it came from

_enabled: dict | None = None  # the argument of enable()
_loaded: tuple[dict, str] | None = None  # the last configuration read from a file, and the file


def enable(section: dict) -> None:
    """Uses `section` for every engine whose configuration has none."""
    from .section.config import parse_section

    global _enabled
    _speak_last()
    parse_section(section, "ostinato.deepspeed.enable")
    _enabled = section


def disable() -> None:
    """Undoes enable(), for engines made from now on."""
    global _enabled
    _enabled = None


def section_of(configuration: dict, file: str | None = None) -> Known:
    """The section for a DeepSpeed configuration, which comes from `file`, or (None, None). Raises OstinatoError for
    a misspelt key, for the section in the wrong place, and for null: whoever wrote these wants a plan to run.
    """
    for key, value in configuration.items():
        if key not in (SECTION, OFF):
            _refuse_strays(key, value, ())
    if SECTION not in configuration:
        return (_enabled, None) if _enabled is not None else _of_environment()
    if _enabled is not None:
        raise OstinatoError(
            f'a plan is given twice, by ostinato.deepspeed.enable() and by the "{SECTION}" section: keep one'
        )
    if configuration[SECTION] is None:
        raise OstinatoError(
            f'"{SECTION}" is null: give it a "plan"; to train without one, remove the key or rename it "{OFF}"'
        )
    named = _of_environment()
    if named[0] is not None:
        return named
    if file is None:  # the script may have read the file that its arguments name
        section, of = _of_arguments(sys.argv[1:])
        file = of if section == configuration[SECTION] else None
    return configuration[SECTION], file


def known_section(model: str = "") -> Known:
    """The section, as far as it is known when a PipelineModule is made, before any configuration is read. `model`:
    its name within the process (MADE)."""
    if _enabled is not None:
        return _enabled, None
    if model in json.loads(_left_by_first(UNPLANNED) or "[]"):
        return None, None
    if (left := _of_first()) is not None:
        return left, None
    section, file = _of_environment()
    return (section, file) if section is not None else _of_arguments(sys.argv[1:])


def _of_first() -> dict | None:
    """In a second start: the section of the first, with paths as written."""
    left = _left_by_first(SECTION_FILE)
    return None if left is None else json.loads(left)


def _left_by_first(name: str) -> str | None:
    """In a second start: a file of the first."""
    from ostinato.ranks.again import folder_of_first_start

    folder = folder_of_first_start()
    return (folder / name).read_text() if folder is not None and (folder / name).is_file() else None


def _of_environment() -> Known:
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None, None
    if given.startswith("{"):
        from .section.config import parse_section

        section = _section_in(given, VARIABLE)
        if section is not None:
            parse_section(section, VARIABLE)
        return section, None
    if not os.path.isfile(given):
        raise OstinatoError(f"{VARIABLE}={given}: {no_file(Path(given))}; {WANTED}")
    made = _section_in(Path(given).read_bytes(), given)
    kind = made.get("format") if isinstance(made, dict) else None
    if kind is None:
        return made, os.path.abspath(given)
    if not str(kind).startswith("ostinato-plan/"):
        raise OstinatoError(f"{VARIABLE}={given} is of the format {kind}; {WANTED}")
    return {"plan": os.path.abspath(given)}, os.path.abspath(given)


def _of_arguments(arguments: list[str]) -> Known:
    """--deepspeed_config FILE, as DeepSpeed's own parser names it, or the file's content as base64 (gpt-neox)."""
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.lstrip("-").replace("-", "_") == "deepspeed_config" and name.startswith("--"):
            return _of_configuration(value if equals else next(iter(arguments[at + 1 :]), ""))
    return None, None


def _of_configuration(given: str) -> Known:
    """(None, None) for what is not a configuration: DeepSpeed reports that itself."""
    try:
        if os.path.isfile(given):
            with open(given) as file:
                return json.load(file).get(SECTION), os.path.abspath(given)
        return json.loads(urlsafe_b64decode(given)).get(SECTION), None
    except (ValueError, AttributeError, OSError):
        return None, None


def _section_in(text: str | bytes, where: str) -> dict | None:
    try:
        made = json.loads(text)
    except ValueError as error:
        raise OstinatoError(f"{where} is not valid JSON ({error}); {WANTED}") from None
    return made[SECTION] if isinstance(made, dict) and SECTION in made else made


def _refuse_strays(key, value, inside: tuple[str, ...]) -> None:
    """Refuses a key that looks like the section's name, at any depth."""
    where = "".join(f' in "{name}"' for name in reversed(inside))
    if inside and key == SECTION:
        raise OstinatoError(
            f'the DeepSpeed configuration has the "{SECTION}" section{where}: move it to the top level'
        )
    if _resembles(str(key).lower()):
        raise OstinatoError(
            f'the DeepSpeed configuration has the key "{key}"{where}: did you mean "{SECTION}"? (to keep a section unused, call it "{OFF}")'
        )
    for entry in value if isinstance(value, list | tuple) else [value]:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            _refuse_strays(name, below, (*inside, str(key)))


def _resembles(key: str) -> bool:
    """True for "ostinato.plan", "ostinato_config" and near misspellings."""
    return SECTION in key or SequenceMatcher(None, key, SECTION).ratio() > 0.8


def wrap(module) -> None:
    """Wraps the engines in `module` (deepspeed.runtime.pipe.engine). Idempotent."""
    from ostinato.ranks import again  # notes where the process was started

    if again.folder_of_first_start() is not None:
        from ostinato.ranks import arrivals

        arrivals.name_absent()
        _speak_last()
    pipeline, plain = module.PipelineEngine, module.DeepSpeedEngine
    if hasattr(pipeline.__init__, "__wrapped__"):
        return
    pipeline.__init__ = _pipeline_init(pipeline.__init__)
    module.PipelineModule.__init__ = _module_init(module.PipelineModule.__init__)
    plain.__init__ = _plain_init(plain.__init__, pipeline, module.PipelineModule)
    pipeline.save_checkpoint = _cleared_save(pipeline)
    pipeline.load_checkpoint = _checked_load(pipeline.load_checkpoint)
    _remember_files()


def _pipeline_init(original):
    @functools.wraps(original)
    def init(engine, *args, **kwargs):
        section, file = _section_given(kwargs)
        if section is None:
            model = kwargs.get("model")
            _refuse_placed(model)
            if made := getattr(model, "__dict__", {}).pop(MADE, ""):  # then nothing of ostinato is left in it
                unplanned.append(made)
            return original(engine, *args, **kwargs)
        from .randomness.random_state import draws_of

        of_launcher = getattr(kwargs.get("model"), "local_rank", -1)
        _take_device(getattr(kwargs.get("args"), "device_rank", of_launcher))
        with draws_of(original) as counted:
            return _spoken(_starts)(engine, counted, section, file, args, kwargs)

    return init


def _module_init(original):
    named = inspect.signature(original)

    @functools.wraps(original)
    def init(model, *args, **kwargs):
        from ostinato.ranks.frames import lines

        made = f"{models[where := lines()]}: {where}"
        models[where] += 1
        section, file = _spoken(lambda: known_section(made))
        if section is None:
            original(model, *args, **kwargs)
            setattr(model, MADE, made)
            return
        from .place.built import BUILT, noted
        from .place.placing import place
        from .save.partition import note

        with noted(model) as built:
            original(model, *args, **kwargs)
        _take_device(model.local_rank)
        vars(model).update({MADE: made, BUILT: built})
        note(model, named.bind(model, *args, **kwargs).arguments.get("partition_method", "parameters"))
        place(model, section, file)
        del vars(model)[BUILT]

    return init


def _take_device(number: int) -> None:
    """DeepSpeed's engine makes the rank's device the current one, but ranks speak before they make it. Over NCCL
    torch sends objects from the current device: without this, from the first one of the host, on every rank."""
    from deepspeed.accelerator import get_accelerator

    if number >= 0:
        get_accelerator().set_device(number)


def _starts():
    """Raises OstinatoError where ostinato was built without torch: what measures is missing, too."""
    try:
        from .start.start import start
    except ImportError as error:
        raise OstinatoError(f"ostinato's compiled part does not load: {error}") from None
    return start


def _spoken(read):
    """Calls `read`; the process prints its errors last."""
    try:
        return read()
    except OstinatoError:
        _speak_last()
        raise


def _refuse_placed(model) -> None:
    """DeepSpeed alone would run the layers of a placement in the order of the ranks, and hang or compute
    something else."""
    if not getattr(model, "placed_in_order", True):
        _speak_last()
        raise OstinatoError(PLACED)


def _cleared_save(pipeline):
    """DeepSpeed alone overwrites the files of an earlier save under the same tag, but would leave what a plan has
    written beside them. Its other ranks write nothing before they have met rank 0."""
    own = vars(pipeline).get("save_checkpoint")  # DeepSpeed's pipeline engine inherits it

    @functools.wraps(pipeline.save_checkpoint)
    def save(engine, save_dir, tag=None, *args, **kwargs):
        if save_dir and engine.global_rank == 0 and "_ostinato" not in vars(engine):
            from .save import checkpoint

            checkpoint.clear(save_dir, f"global_step{engine.global_steps}" if tag is None else str(tag))
        original = own.__get__(engine) if own is not None else super(pipeline, engine).save_checkpoint
        return original(save_dir, tag, *args, **kwargs)

    return save


def _checked_load(original):
    """DeepSpeed alone would find sealed optimizer state only after loading the weights: this checks before
    that which placement the state belongs to."""

    @functools.wraps(original)
    def load(
        engine,
        load_dir,
        tag=None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
        *args,
        **kwargs,
    ):
        given = (
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
            *args,
        )
        if "_ostinato" not in vars(engine):  # engines with a plan check it themselves
            from .save import checkpoint, digests, lr_schedule

            folder = checkpoint.folder_read(engine, load_dir, tag)
            optimizer = checkpoint.reads_optimizer(engine, load_optimizer_states, load_module_only)
            digests.refuse_torn(folder, optimizer)
            if optimizer:
                if (first := vars(engine).get("_ostinato_first")) is not None:
                    with first.loads(load_dir, tag):
                        return original(engine, *given, **kwargs)
                if vars(engine).get(checkpoint.ALONE):
                    from .save import optimizer_state

                    with optimizer_state.loading_alone(engine, load_dir, tag):
                        return original(engine, *given, **kwargs)
            if optimizer or checkpoint.reads_weights_by_rank(engine):
                _speak_last()
                checkpoint.check_alone(load_dir, tag, engine)
            held = checkpoint.held_alone(engine.module.parts)
            with lr_schedule.of_same_groups(engine, None if optimizer else folder, held, held):
                return original(engine, *given, **kwargs)
        return original(engine, *given, **kwargs)

    return load


def _plain_init(original, pipeline, module):
    @functools.wraps(original)
    def init(engine, *args, **kwargs):
        if not isinstance(engine, pipeline) and _section_given(kwargs)[0] is not None:
            _speak_last()
            model = kwargs.get("model", args[1] if len(args) > 1 else None)
            if isinstance(model, module):
                raise OstinatoError(
                    f'the "{SECTION}" section needs {_name(pipeline)} or a subclass, and {_name(type(engine))}, with which this run '
                    "trains a PipelineModule, is neither: a plan would run no pass of it. Leave the section out, or make it a subclass"
                )
            raise OstinatoError(
                f'the "{SECTION}" section needs a deepspeed.pipe.PipelineModule, which this model, a {_name(type(model))}, is not, and a loop '
                "that calls engine.train_batch(): transformers' Trainer and Accelerate have none (ostinato.hf.layers() makes a "
                "PipelineModule's layers of a model of transformers)"
            )
        return original(engine, *args, **kwargs)

    return init


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _section_given(kwargs: dict) -> Known:
    config = kwargs.get("config_class")
    given = getattr(config, "_param_dict", None) or kwargs.get("config") or {}
    return _spoken(lambda: section_of(given, _file_of(kwargs)))


def _speak_last() -> None:
    from ostinato.ranks.last_words import speak_last

    speak_last()


def _file_of(kwargs: dict) -> str | None:
    """The file that the configuration came from, if DeepSpeed read it from a file."""
    if _loaded is not None and _loaded[0] is kwargs.get("config"):
        return _loaded[1]
    return None


def _remember_files() -> None:
    """deepspeed.initialize() passes the engine only a dictionary, but relative paths in it start at the
    file."""
    from deepspeed.runtime.tensor_parallel import init_utils

    original = init_utils.load_ds_config

    @functools.wraps(original)
    def load(config):
        global _loaded
        made = original(config)
        if isinstance(config, str) and os.path.exists(config):
            _loaded = (made, os.path.abspath(config))
        return made

    init_utils.load_ds_config = load
    package: Any = sys.modules["deepspeed"]
    if hasattr(package, "load_ds_config"):  # imported before us
        package.load_ds_config = load
