# SPDX-License-Identifier: Apache-2.0
"""What a run knows of the plan in "output", for the starts that follow: three files beside it.

    leave(output / "plan.json", digest, OWN, "this plan is slower than ...")        # on rank 0
    found(output / "plan.json")             # (OWN, "this plan is slower than ..."); None: no verdict on this plan
    leave_check(output / "plan.json", Check(under, "step 1: ... bit for bit", True, True))  # what "check" has measured
    leave_unchecked(output / "plan.json", digest)       # that it has measured nothing yet
    check_of(output / "plan.json", under)   # the same Check; None: this plan was not checked, or not under the same
    unlike_1f1b(output / "plan.json")       # "step 1 differs from DeepSpeed's 1F1B beyond rounding: ..."; "": it does not
    withdraw(output / "plan.json", digest)  # the verdict
    leave_options(output / "plan.json", digest, {"device_memory": "70GiB"})     # what the search was asked for
    options_of(output / "plan.json")        # the same options; None: not known

All have the plan's digest: what is known of a plan does not count for one that is searched later. Where another run
has left its plan in the same folder meanwhile, what a run knows of its own plan is not left there.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostinato.files import Diagnostic

BESIDE = VERDICT, CHECK, OPTIONS = "verdict.json", "check.json", "options.json"
UNCHECKED = "the run that found it ended before its first step was compared with DeepSpeed's 1F1B"
OWN, MEASURE = "DeepSpeed's own schedule", "measure"  # what the next start does


@dataclass(frozen=True)
class Check:
    """`under`: what the comparison depends on: the plan that ran, the losses that were expected, DeepSpeed's partition
    and configuration, and versions. `said`: its result, in words. `equal`: bit for bit; `within_rounding`: if not,
    by no more than rounding."""

    under: dict[str, Any]
    said: str
    equal: bool
    within_rounding: bool


def leave(plan: Path, digest: str, then: str, why: str) -> bool:
    """Whether it could be written, and the plan there is the one with this digest."""
    return _leave(plan, digest, VERDICT, {"then": then, "why": why})


def withdraw(plan: Path, digest: str) -> bool:
    """Whether the plan there is the one with this digest, which then has no verdict. Raises OSError where its file
    cannot be deleted."""
    if not is_of(plan, digest):
        return False
    plan.with_name(VERDICT).unlink(missing_ok=True)
    return True


def found(plan: Path) -> tuple[str, str] | None:
    told = _found(plan, VERDICT)
    with suppress(LookupError, TypeError):
        if told["then"] in (OWN, MEASURE):
            return told["then"], str(told["why"])
    return None


def leave_check(plan: Path, check: Check) -> None:
    _leave(plan, check.under["plan_sha256"], CHECK, asdict(check))


def leave_unchecked(plan: Path, digest: str) -> None:
    """Until leave_check(): a run that ends before leaves a plan that was never compared."""
    _leave(plan, digest, CHECK, asdict(Check({}, UNCHECKED, False, False)))


def withdraw_unchecked(plan: Path, digest: str) -> None:
    """Where the first steps were not the same, and rank 0 has said that none was compared."""
    if is_of(plan, digest) and unlike_1f1b(plan) == UNCHECKED:
        with suppress(OSError):
            plan.with_name(CHECK).unlink(missing_ok=True)


def check_of(plan: Path, under: dict[str, Any]) -> Check | None:
    told = _found(plan, CHECK)
    with suppress(LookupError, TypeError):
        if told["under"] == under:
            return Check(under, str(told["said"]), told["equal"] is True, told["within_rounding"] is True)
    return None


def unlike_1f1b(plan: Path) -> str:
    """What "check" has measured, where the plan's numbers were not those of 1F1B, or that it has measured nothing."""
    told = _found(plan, CHECK)
    return str(told.get("said")) if told.get("within_rounding") is False else ""


def leave_options(plan: Path, digest: str, options: dict[str, Any]) -> None:
    _leave(plan, digest, OPTIONS, {"search": options})


def options_of(plan: Path) -> dict[str, Any] | None:
    told = _found(plan, OPTIONS).get("search")
    return told if isinstance(told, dict) else None


def _leave(plan: Path, digest: str, name: str, told: dict[str, Any]) -> bool:
    if not is_of(plan, digest):
        return False
    return Diagnostic(plan.with_name(name)).write(json.dumps({"plan_sha256": digest} | told, indent=1) + "\n")


def is_of(plan: Path, digest: str) -> bool:
    """Whether this plan is there."""
    with suppress(OSError):
        return digest_of(plan) == digest
    return False


def _found(plan: Path, name: str) -> dict[str, Any]:
    """{}: nothing on this plan."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        told = json.loads(plan.with_name(name).read_text())
        if told["plan_sha256"] == digest_of(plan):
            return told
    return {}


def digest_of(plan: Path) -> str:
    return hashlib.sha256(plan.read_bytes()).hexdigest()
