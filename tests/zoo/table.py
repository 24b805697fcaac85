# SPDX-License-Identifier: Apache-2.0
"""The table model × placement × verdict as a page: docs/zoo.md is what a run of everything wrote."""

import json
from dataclasses import astuple
from pathlib import Path
from textwrap import wrap

from .cases import cases
from .catalogue import MODELS, REAL
from .placements import PLACEMENTS
from .verdict import Verdict

COLUMNS = 100
HEAD = """# The zoo

Models that nobody wrote for ostinato. Each trains under each placement, and under DeepSpeed's own
1F1B, on CPUs over gloo: three steps and an evaluation. Then losses, weights and buffers of both are
compared. `script/zoo --table docs/zoo.md` writes this page; {whole}

| verdict | what was seen |
| --- | --- |
| equal | losses, evaluation, weights and buffers are equal bit for bit |
| rounding | the differences are that small; the list below has what rank 0 expected |
| differs | random numbers that a rank named, or a layer that breaks the contract |
| refused | an error of ostinato names the cause, and every rank stops |
| WRONG | anything else: a fault |

*Rounding* allows a thousandth of a loss, and for a weight what Adam moves in three steps. The
losses that *differ* are finite and near; some hazards break the
[contract](deepspeed.md#are-the-numbers-those-of-1f1b) on purpose. A refusal comes before any weight
changed. An empty cell means that {unrun}the model's ends cannot be cut over ranks, or that DeepSpeed
alone cannot train it on so many ranks.

`tests/zoo/placements.py` has the placements, `tests/zoo/huggingface.py` and `alexnet.py` the
models, and `hazards/` small models that each do one thing that ordinary training code does.
"""


def write_table(path: Path, verdicts: dict[str, dict[str, Verdict]]) -> None:
    names = [name for name in PLACEMENTS if any(name in row for row in verdicts.values())]
    everything = cases(everything=True)
    missing = sum(name not in verdicts.get(model, {}) for model, name in everything)
    text = [
        HEAD.format(
            whole=f"of {len(everything)} pairs {missing} have not run."
            if missing
            else "every pair that can run has run.",
            unrun="the pair has not run, that " if missing else "",
        )
    ]
    for title, models in (("Models", REAL), ("Hazards", [m for m in MODELS if m not in REAL])):
        models = [m for m in models if m in verdicts]
        text += ["", f"## {title}", "", f"| | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
        text += [
            f"| {m} | " + " | ".join(_kind(verdicts[m].get(name)) for name in names) + " |" for m in models
        ]
    text += ["", "## Why", ""]
    for why, pairs in sorted(_reasons(verdicts).items(), key=lambda item: (-len(item[1]), item[0])):
        where = f"({len(pairs)}: {'; '.join(pairs[:3])}{', ...' if len(pairs) > 3 else ''})"
        text += wrap(
            f"{why} {where}", COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
    path.write_text("\n".join(text) + "\n")


def read_verdicts(path: Path) -> dict[str, dict[str, Verdict]]:
    """Those of models and placements that still exist, if the file does."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows = {
        model: {name: Verdict(*verdict) for name, verdict in row.items() if name in PLACEMENTS}
        for model, row in kept.items()
    }
    return {model: row for model, row in rows.items() if model in MODELS}


def keep_verdicts(path: Path, verdicts: dict[str, dict[str, Verdict]]) -> None:
    path.write_text(
        json.dumps(
            {
                model: {name: astuple(verdict) for name, verdict in row.items()}
                for model, row in verdicts.items()
            }
        )
    )


def _kind(verdict: Verdict | None) -> str:
    return "" if verdict is None else verdict.kind


def _reasons(verdicts) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for model, row in verdicts.items():
        for name, verdict in row.items():
            if verdict.why:
                reasons.setdefault(f"**{verdict.kind}**: {verdict.why}", []).append(f"{model} × {name}")
    return reasons
