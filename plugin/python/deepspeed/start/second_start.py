# SPDX-License-Identifier: Apache-2.0
"""What the first start hands to the second, and what happens where there can be none.

begin(prepared, records)      # all ranks, in the first start: every process replaces itself (again)
measured(prepared)            # in the second: what 1F1B did in this engine's checked steps; None: nothing
for_another(prepared)         # in the second: another engine of the process has found the plan
before(prepared)              # in the second: seconds of DeepSpeed's own steps in the first; []: not known
fall_back(prepared, why)      # in the second: the plan is slower, and all ranks start once more without it
move(prepared, files, moved)  # under a plan: all ranks start once more, with a new one (adapt)
moved(prepared)               # in a start after that: what it follows
goes_without()                # in the second, or later: why it runs under DeepSpeed's own schedule
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from ostinato.files import write_text
from ostinato.ranks import again
from ostinato.groups import everyones

from ..tell.announce import say
from ..engine.adapt import Moved
from ..errors import OstinatoError, Unsupported
from ..place.placing import Prepared
from ..section import LEFT, VARIABLE
from ..section.search import FILES, PLAN

RECORDS = "first.json"  # of the steps that DeepSpeed's 1F1B has run
ENGINE = "engine.txt"  # which engine of the process has found the plan
BEFORE = "before.json"  # seconds of its steps
WITHOUT = "without.txt"
MOVED = "moved.json"
SLOWER = "slower-plan.json"  # the plan in "output" that was not faster: no run finds it there


class NeedsNewStart(OstinatoError):
    """`files`: what the second start would be given."""

    def __init__(self, message: str, files: dict[str, str]):
        super().__init__(message)
        self.files = files


def begin(prepared: Prepared, records: str = "", seconds: Sequence[float] = ()) -> NoReturn:
    """All ranks must call it, with the same plan, `records` (prints.Records, as text) and `seconds` of steps."""
    asked, paths = prepared.checked()
    files = dict(prepared.files) or {
        name: path.read_text()
        for name, path in zip(FILES, (paths.plan, paths.placement), strict=True)
        if path
    }
    files |= {ENGINE: str(prepared.engine)} | ({RECORDS: records} if records else {})
    files |= {BEFORE: json.dumps(list(seconds))} if seconds else {}
    files[LEFT] = asked.model_dump_json(exclude_unset=True)
    where = _kept(files, paths.output) if asked.searches and dist.get_rank() == 0 else ""
    if asked.auto == "measure":
        say(f"the plan lies in {where}: the next start runs it")
        sys.exit(0)
    if why := again.why_not_again():
        named = where or str(paths.plan)
        raise NeedsNewStart(
            f"ranks have to start again with the plan, and this process cannot replace itself ({why}): start it again with "
            f"{VARIABLE}={named}"
            if dist.get_rank() == 0
            else f"ranks have to start again with the plan, and cannot replace themselves ({why})",
            files,
        )
    say(
        "the layers lie where the plan has them from their constructors on: all ranks start again, once"
        + (f"; the plan lies in {where}" if paths.output else "")
    )
    again.begin_again(files, asked.timeout_s)


def begin_without(prepared: Prepared, error: Unsupported) -> NoReturn:
    """No plan can run. Where the section allows it, all ranks start again, and run under DeepSpeed's own
    schedule."""
    if prepared.section is None or prepared.section.require:
        raise error
    if why := again.why_not_again():
        raise NeedsNewStart(
            f"{error}; and this process cannot start again without a plan, for {why}", {WITHOUT: str(error)}
        )
    again.begin_again({WITHOUT: str(error)}, prepared.section.timeout_s)


def fall_back(prepared: Prepared, why: str) -> str:
    """All ranks must call it. Returns why they cannot start again, in words that go on after "for"."""
    if cannot := next(filter(None, everyones(again.why_not_again(further=True))), ""):
        return cannot
    asked, paths = prepared.checked()
    say(f'{why}; all ranks start again, under DeepSpeed\'s own schedule ("fallback": false keeps the plan)')
    if asked.auto and paths.output is not None and dist.get_rank() == 0:
        with suppress(OSError):
            (paths.output / PLAN).replace(paths.output / SLOWER)
    again.begin_again({WITHOUT: why}, asked.timeout_s, further=True)


def move(prepared: Prepared, files: Mapping[str, str], moved: Moved) -> str:
    """All ranks must call it, with the same plan. Returns why they cannot start again, in words that go on
    after "for"."""
    if cannot := next(filter(None, everyones(again.why_not_again(further=True))), ""):
        return cannot
    asked = prepared.checked()[0]
    say(f"all ranks restart with the new plan, from the checkpoint of step {moved.step}")
    left = {
        ENGINE: str(prepared.engine),
        LEFT: asked.model_dump_json(exclude_unset=True),
        MOVED: moved.model_dump_json(),
    }
    again.begin_again(dict(files) | left, asked.timeout_s, further=True)


def moved(prepared: Prepared) -> Moved | None:
    """What this start follows, if it is a move."""
    text = _left(prepared, MOVED)
    return None if text is None else Moved.model_validate_json(text)


def measured(prepared: Prepared) -> str | None:
    return _left(prepared, RECORDS)


def before(prepared: Prepared) -> list[float]:
    return json.loads(_left(prepared, BEFORE) or "[]")


def _left(prepared: Prepared, name: str) -> str | None:
    """By the first start, for this engine."""
    folder = again.left_by_first()
    if folder is None or not (folder / name).is_file() or for_another(prepared):
        return None
    return (folder / name).read_text()


def for_another(prepared: Prepared) -> bool:
    folder = again.left_by_first()
    return folder is not None and (folder / ENGINE).read_text() != str(prepared.engine)


def goes_without() -> str:
    """Why; "" where the plan runs."""
    folder = again.left_by_first()
    return (folder / WITHOUT).read_text() if folder is not None and (folder / WITHOUT).is_file() else ""


def _kept(files: dict[str, str], output: Path | None) -> str:
    """Where the plan lies: in "output", to which the search has written it, or in a folder for whoever cannot
    start again."""
    if output is not None:
        return str(output / PLAN)
    if not again.why_not_again():
        return ""
    folder = Path(tempfile.mkdtemp(prefix="ostinato-plan-"))
    for name in FILES:
        write_text(folder / name, files[name])
    return str(folder / PLAN)
