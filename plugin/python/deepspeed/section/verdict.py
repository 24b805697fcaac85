# SPDX-License-Identifier: Apache-2.0
"""What a run has found out about the plan in "output", for the starts that follow: `verdict.json` beside it.

    leave(output / "plan.json", OWN, "this plan is slower than ...")        # on rank 0
    found(output / "plan.json")             # (OWN, "this plan is slower than ..."); None: no verdict on this plan

It has the plan's digest: a plan that is searched later has no verdict.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ostinato.files import Diagnostic

VERDICT = "verdict.json"
OWN, MEASURE = "DeepSpeed's own schedule", "measure"  # what the next start does


def leave(plan: Path, then: str, why: str) -> None:
    with suppress(OSError):  # the plan is gone
        text = json.dumps({"plan_sha256": _digest(plan), "then": then, "why": why}, indent=1)
        Diagnostic(plan.with_name(VERDICT)).write(text + "\n")


def found(plan: Path) -> tuple[str, str] | None:
    with suppress(OSError, ValueError, TypeError, LookupError):
        told = json.loads(plan.with_name(VERDICT).read_text())
        if told["plan_sha256"] == _digest(plan) and told["then"] in (OWN, MEASURE):
            return told["then"], str(told["why"])
    return None


def _digest(plan: Path) -> str:
    return hashlib.sha256(plan.read_bytes()).hexdigest()
