# SPDX-License-Identifier: Apache-2.0
"""`ostinato report`: what was predicted against what was measured, per block, rank and step."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ostinato.errors import Status, printable
from ostinato.files import why_not_all, write_text
from ostinato.trace import RankTrace, TraceError, perfetto, read_traces

KINDS = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}


def blocks(ranks: list[RankTrace]) -> list[dict]:
    """One row a (stage, kind): planned and measured nanoseconds, medians over the micro-batches of the last step."""
    rows = defaultdict(list)
    for trace in ranks:
        for i in trace.instructions:
            if i.is_compute:
                rows[i.stage, i.action, trace.rank].append(i)
    return [
        {
            "stage": stage,
            "kind": KINDS[action],
            "rank": rank,
            "planned_ns": int(statistics.median(i.planned for i in group)),
            "measured_ns": int(statistics.median(i.measured for i in group)),
        }
        for (stage, action, rank), group in sorted(rows.items())
    ]


def rank_rows(ranks: list[RankTrace]) -> list[dict]:
    """Per rank: nanoseconds of compute planned and measured, and the share of the step that is bubble."""
    length = max(i.end for trace in ranks for i in trace.instructions)
    rows = []
    for trace in ranks:
        compute = [i for i in trace.instructions if i.is_compute]
        planned, measured = sum(i.planned for i in compute), sum(i.measured for i in compute)
        rows.append(
            {
                "rank": trace.rank,
                "planned_busy_ns": planned,
                "measured_busy_ns": measured,
                "planned_bubble": 1 - planned / trace.makespan if trace.makespan else 0.0,
                "measured_bubble": 1 - measured / length if length else 0.0,
                "peak_memory": trace.peak_memory,
            }
        )
    return rows


def step(ranks: list[RankTrace]) -> dict:
    """Seconds: the plan's makespan; the pipeline part of the last step, from its begin to the last end; and the median
    over the steps of their wall clock, optimizer included, the first step left out."""
    slowest = [max(times) for times in zip(*(trace.step_seconds for trace in ranks), strict=False)]
    return {
        "predicted": ranks[0].makespan / 1e9,
        "measured_pipeline": max(i.end for trace in ranks for i in trace.instructions) / 1e9,
        "measured_step": statistics.median(slowest[1:] or slowest),
        "steps": len(slowest),
    }


def summary(ranks: list[RankTrace]) -> dict:
    return {
        "plan_sha256": ranks[0].plan_sha256,
        "step": step(ranks),
        "blocks": blocks(ranks),
        "ranks": rank_rows(ranks),
    }


def milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.2f}"


def ratio(measured: float, planned: float) -> str:
    return f"{measured / planned:.2f}" if planned else "–"


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="left" if column == "kind" else "right")
    for row in rows:
        made.add_row(*row)
    return made


def show(report: dict, console: Console) -> None:
    rows = [
        [str(r["stage"]), r["kind"], str(r["rank"]), milliseconds(r["planned_ns"]), milliseconds(r["measured_ns"]),
         ratio(r["measured_ns"], r["planned_ns"])]
        for r in report["blocks"]
    ]  # fmt: skip
    title = "Blocks, predicted against measured (ms, median over the micro-batches of one step)"
    console.print(table(title, ["stage", "kind", "rank", "predicted", "measured", "ratio"], rows))

    rows = [
        [str(r["rank"]), milliseconds(r["planned_busy_ns"]), milliseconds(r["measured_busy_ns"]),
         f"{r['planned_bubble']:.1%}", f"{r['measured_bubble']:.1%}",
         "–" if r["peak_memory"] is None else f"{r['peak_memory'] / 2**20:.1f} MiB"]
        for r in report["ranks"]
    ]  # fmt: skip
    columns = ["rank", "busy predicted", "busy measured", "bubble predicted", "bubble measured", "peak memory"]
    console.print(table("Ranks (ms of compute; bubble as a share of the step)", columns, rows))

    seconds = report["step"]
    console.print(
        f"Step: predicted {seconds['predicted'] * 1e3:.1f} ms; pipeline part of the last step "
        f"{seconds['measured_pipeline'] * 1e3:.1f} ms ({ratio(seconds['measured_pipeline'], seconds['predicted'])}x); "
        f"whole step, optimizer included, median of {seconds['steps']}: {seconds['measured_step'] * 1e3:.1f} ms"
    )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="ostinato report",
        description="Compares what a run was predicted to take with what it took: per block, rank and step.",
        epilog='example: ostinato report out/trace --perfetto out/trace.json   (with "trace": "out/trace" in ds_config.json)',
    )
    p.add_argument("trace", type=Path, help='the folder that "trace" of the ostinato section names')
    p.add_argument("--perfetto", type=Path, metavar="FILE", help="write the last step as Perfetto/Chrome JSON")
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return p


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    try:
        wrong = why_not_all({"--perfetto": args.perfetto})
        if wrong:
            raise TraceError(wrong)
        ranks = read_traces(args.trace)
        if args.perfetto:
            write_text(args.perfetto, json.dumps(perfetto(ranks)))
    except (TraceError, OSError) as error:
        print(f"ostinato report: {printable(str(error))}", file=sys.stderr)
        return Status.BAD_INPUT
    if args.json:
        print(json.dumps(summary(ranks)))
    else:
        show(summary(ranks), Console())
    return 0
