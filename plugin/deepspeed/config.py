"""The "ostinato" section of `ds_config.json`.

    "ostinato": {
      "plan": "plan.json",            // required
      "placement": "placement.toml",  // default: placement.toml beside the plan; must be the one that the plan names
      "timeout_s": 300,               // a rank that waits longer says for which instruction of which peer, and stops
      "trace": "out/trace",           // folder for ostinato-trace/1 files; absent: no trace
      "require": true                 // false: where this run cannot be combined with a plan, go on under DeepSpeed's 1F1B
    }

Relative paths are taken from the folder of the configuration's file, or from the working directory where DeepSpeed was
given a dictionary.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import OstinatoError


class Section(BaseModel):
    """The section as written; paths are still relative."""

    model_config = ConfigDict(extra="forbid", strict=True)
    PATHS: ClassVar[tuple[str, ...]] = ("plan", "placement", "trace")

    plan: str = Field(min_length=1)
    placement: str | None = Field(default=None, min_length=1)
    timeout_s: float = Field(default=300.0, gt=0, le=1e7)
    trace: str | None = Field(default=None, min_length=1)
    require: bool = True


class Paths(BaseModel):
    """The section's files, absolute."""

    plan: Path
    placement: Path
    trace: Path | None


def parse_section(section: object, where: str) -> Section:
    """Checks a section. Raises OstinatoError that starts with `where` and names every key that is wrong."""
    if not isinstance(section, dict):
        raise OstinatoError(f'{where}: the "ostinato" section must be an object such as {{"plan": "plan.json"}}')
    try:
        return Section.model_validate(section)
    except ValidationError as error:
        raise OstinatoError("; ".join(f"{where}: {_in_words(e)}" for e in error.errors())) from None


def _in_words(error) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = get_close_matches(key, Section.model_fields, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(Section.model_fields)}"
        return f'unknown key "{key}" in the "ostinato" section: {hint}'
    if error["type"] == "missing":
        return f'the "ostinato" section has no "{key}"'
    return f'"{key}" in the "ostinato" section: {error["msg"]}, not {error["input"]!r}'


def resolve(section: Section, file: str | None) -> Paths:
    """Absolute paths. Raises OstinatoError where the plan or its placement is missing."""
    base = Path(file).parent if file else Path.cwd()
    plan = base / section.plan
    if not plan.is_file():
        raise OstinatoError(f'"plan": {plan}: no such file; ostinato search PLACEMENT --output PLAN makes one')
    placement = base / section.placement if section.placement else plan.with_name("placement.toml")
    if not placement.is_file():
        which = "" if section.placement else ' (the default, beside the plan; "placement" names another)'
        raise OstinatoError(f'"placement": {placement}: no such file{which}')
    return Paths(plan=plan, placement=placement, trace=base / section.trace if section.trace else None)
