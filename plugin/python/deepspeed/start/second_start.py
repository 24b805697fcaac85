# SPDX-License-Identifier: Apache-2.0
"""What the first start leaves for the second, and what happens where a second start is not possible.

keep(prepared, model, states)   # in the first start: what an engine trains from
begin_anew(prepared, error)     # in the first start, on all ranks: once more, without the plan for which layers have moved
is_first()                      # whether this is a first start, or one after begin_anew()
begin(prepared, records)        # in the first start, on all ranks: every process replaces itself (again)
trains_as_first(prepared, model, stages, states)    # in the second: gives the model the first one's weights
records_of_1f1b(prepared)       # in the second: what DeepSpeed's 1F1B computed in this engine's checked steps, or None
for_another(prepared)           # in the second: whether the plan is for another engine of the process
before(prepared)                # in the second: seconds of steps of DeepSpeed's own engine in the first; []: not known
fall_back(prepared, why, seconds)   # in the second: the plan is slower, and all ranks start once more without it
given_up(engine)                # in the third: seconds of that plan's steps, if this engine had it
forget()                        # in the third: withdraws the verdict on that plan
judge(prepared, then, why)      # in the second: for the next start, where the plan is slower and stays
move(prepared, files, moved)    # under a plan: all ranks start once more, with a new plan (adapt)
moved(prepared)                 # in a start after a move: what it follows
goes_without()                  # in a later start: why it must run under DeepSpeed's own schedule
"""

import json
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from ostinato.ranks import again
from ostinato.groups import everyones

from ..tell.announce import gain_of, say
from ..engine.adapt import Moved
from ..errors import NoPlan, OstinatoError, OtherModel
from ..place import first_weights
from ..place.placing import Prepared, kept_for_another
from ..section import SECTION_FILE, UNPLANNED, VARIABLE, unplanned, verdict
from ..section.agreement import of_rank_0
from ..section.plans import Stage
from ..section.kept import FILES, PLAN
from ..upstream import Model

WEIGHTS = "weights-{}.pt"  # of the first start (first_weights), by the engine that has the model
RECORDS = "first.json"  # records of the steps that DeepSpeed's 1F1B ran
ENGINE = "engine.txt"  # the engine that has the plan
BEFORE = "before.json"  # seconds of 1F1B's steps
WITHOUT = "without.txt"
ANEW = "anew.txt"
MOVED = "moved.json"
GIVEN_UP = "given_up.json"  # [engine, file of the plan that has a verdict, its digest, seconds of its steps]


_first: dict[str, first_weights.First] = {}  # of the engines of this process that are not collected


class NeedsNewStart(OstinatoError):
    """`files`: that the second start would get."""

    def __init__(self, message: str, files: Mapping[str, again.File]):
        super().__init__(message)
        self.files = files


def keep(prepared: Prepared, model: Model, states: tuple) -> None:
    """To be called before the engine is made; whichever engine of the process then begins the second start."""
    if (first := first_weights.kept(model, states)) is not None:
        _first[prepared.engine] = first
        weakref.finalize(model, _first.pop, prepared.engine, None)


def begin(prepared: Prepared, records: str = "", seconds: Sequence[float] = ()) -> NoReturn:
    """All ranks must call it, with the same plan, `records` (Records, as text) and `seconds` of steps."""
    asked, paths = prepared.checked()
    files: dict[str, again.File] = dict(prepared.files) or {
        name: path.read_text()
        for name, path in zip(FILES, (paths.plan, paths.placement), strict=True)
        if path
    }
    files |= _whose(prepared) | ({RECORDS: records} if records else {})
    files |= {BEFORE: json.dumps(list(seconds))} if seconds else {}
    files |= {WEIGHTS.format(engine): first.write for engine, first in _first.items()}
    files[SECTION_FILE] = asked.model_dump_json(exclude_unset=True)
    where, is_there = of_rank_0(lambda: _kept(files, paths.output) if asked.searches else ("", False))
    no_gain = _no_gain(prepared)
    follows = judge(prepared, verdict.OWN, no_gain) if no_gain else ""
    if asked.auto == "measure" and not prepared.kept:
        if not is_there:
            raise OstinatoError(f"the plan could not be written to {paths.output}")
        say(f"the plan is in {where}: {f'{no_gain}; {follows}' if follows else 'the next start runs it'}")
        sys.exit(0)
    if no_gain:
        _stay(prepared, no_gain)
    if why := _why_not_again():
        raise NeedsNewStart(
            f"ranks must start again with the plan, but this process cannot replace itself ({why}): start it again with "
            f"{VARIABLE}={where or paths.plan}",
            files,
        )
    kept = f"; the plan is in {where}" if paths.output and where else ""
    if (
        records
        and asked.uses_kept
        and not prepared.kept
        and paths.output is not None
        and dist.get_rank() == 0
    ):
        verdict.leave_unchecked(paths.output / PLAN, _digest(prepared))
    lost = '; without "output", the next run measures again' if asked.auto and not paths.output else ""
    say(f"all ranks start again, once, to build their layers where the plan places them{kept}{lost}")
    _begin_again(files, asked.timeout_s)


def begin_anew(prepared: Prepared, error: OtherModel) -> NoReturn:
    """PipelineModule has placed its layers for the plan in "output", as they have the names that it
    expects."""
    (_, paths), program = prepared.checked(), prepared.program
    assert program is not None
    say(of_rank_0(lambda: kept_for_another(paths, program, error)))
    files = _whose(prepared) | {ANEW: ""}
    if why := again.why_not_again():
        raise NeedsNewStart(
            f"ranks must start again with this model's layers where DeepSpeed places them, but this process cannot replace itself ({why}): start it again",
            files,
        )
    say("all ranks start again, with this model's layers where DeepSpeed places them")
    again.begin_again(files, prepared.checked()[0].timeout_s)


def is_first() -> bool:
    return again.folder_of_first_start() is None or _is_anew()


def _is_anew() -> bool:
    folder = again.folder_of_first_start()
    return folder is not None and (folder / ANEW).is_file()


def _why_not_again() -> str:
    return again.why_not_again(further=_is_anew())


def _begin_again(files: Mapping[str, again.File], timeout_s: float) -> NoReturn:
    again.begin_again(files, timeout_s, further=_is_anew())


def _begin_or_why_not(files: Mapping[str, again.File], timeout_s: float) -> str:
    """Returns only where nothing has changed yet, so that the ranks can go on."""
    try:
        again.begin_again(files, timeout_s, further=True)
    except again.Refused as refused:
        return str(refused)


def _whose(prepared: Prepared) -> dict[str, again.File]:
    """Which engine has the plan, and which models have none."""
    return {ENGINE: prepared.engine, UNPLANNED: json.dumps(unplanned)}


def _no_gain(prepared: Prepared) -> str:
    """Why no rank needs to run the plan: DeepSpeed's own step, as measured in this start, is as short as the plan's
    is expected to be; else ""."""
    asked, program = prepared.checked()[0], prepared.program
    if not asked.auto or not asked.falls_back or asked.adapt is not None or program is None:
        return ""
    gain = gain_of(program)
    if gain.is_worth_it:
        return ""
    return (
        f"DeepSpeed's own step takes {gain.measured / 1e6:.1f} ms, measured, and the plan's {gain.step / 1e6:.1f} ms, expected and "
        f"scaled by {gain.factor:.2f}"
    )


def _stay(prepared: Prepared, why: str) -> NoReturn:
    """All ranks start again under DeepSpeed's own schedule, as measuring has changed weights and engine."""
    if cannot := _why_not_again():
        raise NeedsNewStart(
            f"{why}: DeepSpeed's own schedule stays, but this process has measured and cannot replace itself ({cannot}): start it again without "
            'the "ostinato" section',
            {WITHOUT: why},
        )
    _begin_again({WITHOUT: f'{why} ("fallback": false runs the plan)'}, prepared.checked()[0].timeout_s)


def why_without(prepared: Prepared, error: OstinatoError) -> str:
    """Why no plan can run, in words. Raises `error` (Unsupported, NoPlan) where the section does not allow the run to go
    on under DeepSpeed's own schedule."""
    asked = prepared.section
    if isinstance(error, NoPlan):
        if asked is None or asked.auto is not True or not asked.falls_back:
            raise error
        return f'{error} ("fallback": false stops the run)'
    if asked is None or asked.require:
        raise error
    return str(error)


def begin_without(prepared: Prepared, error: OstinatoError) -> NoReturn:
    """No plan can run: where the section allows it, all ranks start again under DeepSpeed's own schedule."""
    reason, asked = why_without(prepared, error), prepared.checked()[0]
    if why := _why_not_again():
        raise NeedsNewStart(
            f"{error}; and this process cannot start again without a plan, because {why}", {WITHOUT: reason}
        )
    _begin_again({WITHOUT: reason}, asked.timeout_s)


def fall_back(prepared: Prepared, why: str, seconds: Sequence[float]) -> str:
    """All ranks must call it. Returns only where they cannot start again: why, as words after "because"."""
    if cannot := next(filter(None, everyones(again.why_not_again(further=True))), ""):
        return cannot
    asked, paths = prepared.checked()
    say(f'{why}; all ranks start again under DeepSpeed\'s own schedule ("fallback": false keeps the plan)')
    left: dict[str, again.File] = {WITHOUT: why}
    if judge(prepared, verdict.OWN, why) and paths.output is not None:
        given_up = [prepared.engine, str(paths.output / PLAN), _digest(prepared), list(seconds)]
        left[GIVEN_UP] = json.dumps(given_up)
    return _begin_or_why_not(left, asked.timeout_s)


def given_up(wanted: str) -> list[float]:
    """Seconds of the plan's steps where the second start has given up the plan of this engine; else []."""
    engine, _, _, seconds = _given_up()
    return seconds if engine == wanted else []


def forget() -> str:
    """Withdraws the verdict on the plan that was given up; returns what follows, in words."""
    _, file, digest, _ = _given_up()
    plan, is_there = Path(file), True
    if dist.get_rank() == 0:
        try:
            is_there = verdict.withdraw(plan, digest)
        except OSError as error:
            return f"the machine is not as it was: delete {error.filename}, which could not be deleted ({error.strerror})"
    if not is_there:
        return f"the machine is not as it was, but {plan.parent} no longer has that plan"
    return f"the machine is not as it was, and the next start runs the plan in {plan.parent} again"


def _given_up() -> tuple[str, str, str, list[float]]:
    folder = again.folder_of_first_start()
    if folder is None or not (folder / GIVEN_UP).is_file():
        return "", "", "", []
    engine, plan, digest, seconds = json.loads((folder / GIVEN_UP).read_text())
    return engine, plan, digest, seconds


def _digest(prepared: Prepared) -> str:
    """Of the plan that all ranks run."""
    assert prepared.program is not None
    return prepared.program.plan_sha256


def judge(prepared: Prepared, then: str, why: str) -> str:
    """Leaves a verdict on the plan of this run in "output" for the next start; returns in words what that does, ""
    where it heeds no verdict, or finds none: another run may have left its plan there. All ranks must call it."""
    asked, paths = prepared.checked()
    if not asked.auto or not asked.falls_back or paths.output is None:
        return ""
    plan, digest = paths.output / PLAN, _digest(prepared)
    if not of_rank_0(lambda: verdict.leave(plan, digest, then, why)):
        return ""
    return f"the next start {'measures again' if then == verdict.MEASURE else f'runs {then}'}"


def move(prepared: Prepared, files: Mapping[str, str], moved: Moved) -> str:
    """All ranks must call it, with the same plan. Returns only where they cannot start again: why, as words
    after "because"."""
    if cannot := next(filter(None, everyones(again.why_not_again(further=True))), ""):
        return cannot
    asked = prepared.checked()[0]
    say(f"all ranks restart with the new plan, from the checkpoint of step {moved.step}")
    left = _whose(prepared) | {
        SECTION_FILE: asked.model_dump_json(exclude_unset=True),
        MOVED: moved.model_dump_json(),
    }
    return _begin_or_why_not(dict(files) | left, asked.timeout_s)


def moved(prepared: Prepared) -> Moved | None:
    """The move that this start follows, if any."""
    text = _of_first_start(prepared, MOVED)
    return None if text is None else Moved.model_validate_json(text)


def trains_as_first(
    prepared: Prepared, model: Model, stages: Sequence[Stage], states: tuple
) -> first_weights.Restored:
    """Gives the model the trainable weights of the first start. All ranks must call it before the engine is
    made. `states`: of random numbers."""
    folder = again.folder_of_first_start()
    if folder is None:
        return first_weights.Restored(states)
    first = first_weights.read(folder / WEIGHTS.format(prepared.engine))
    return first_weights.restore(model, stages, first, states)


def records_of_1f1b(prepared: Prepared) -> str | None:
    return _of_first_start(prepared, RECORDS)


def before(prepared: Prepared) -> list[float]:
    return json.loads(_of_first_start(prepared, BEFORE) or "[]")


def _of_first_start(prepared: Prepared, name: str) -> str | None:
    """What the first start has left for this engine."""
    folder = again.folder_of_first_start()
    if folder is None or not (folder / name).is_file() or for_another(prepared):
        return None
    return (folder / name).read_text()


def for_another(prepared: Prepared) -> bool:
    folder = again.folder_of_first_start()
    return folder is not None and (folder / ENGINE).read_text() != prepared.engine


def goes_without() -> str:
    """Why this start runs without a plan; "" where it has one."""
    folder = again.folder_of_first_start()
    return (folder / WITHOUT).read_text() if folder is not None and (folder / WITHOUT).is_file() else ""


def _kept(files: Mapping[str, again.File], output: Path | None) -> tuple[str, bool]:
    """On rank 0, as paths differ between nodes: where the plan is, and whether that is "output", where the search wrote
    it; else a new folder for a process that cannot start again."""
    if output is not None and (output / PLAN).is_file() and (output / PLAN).read_text() == files[PLAN]:
        return str(output / PLAN), True  # where the disk is not full
    if not _why_not_again():
        return "", False
    folder = Path(tempfile.mkdtemp(prefix="ostinato-plan-"))
    again.write({name: files[name] for name in FILES}, folder)
    return str(folder / PLAN), False
