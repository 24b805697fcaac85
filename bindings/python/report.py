# SPDX-License-Identifier: Apache-2.0
"""`ostinato report`: predicted against measured times, per block, rank and step."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ostinato.errors import Error, Parser, Status, counted, fail, fail_usage, printable
from ostinato.files import ADAPTED, BASE, BASE_DEVICES, no_file, why_not_all, why_not_apart, write_text
from ostinato.gain import WARM_UP, Gain
from ostinato.measured import Measured, block_rows, replanned, speeds_in
from ostinato.objects import Placement, Profile
from ostinato.trace import RankTrace, TraceError, missing_devices, perfetto, read_traces, trace_files

KINDS = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}


def blocks(ranks: list[RankTrace]) -> list[dict]:
    """One row per (stage, kind, rank): planned and measured nanoseconds."""
    rows = [
        (block.stage, block.action, trace.rank, planned, measured)
        for trace in ranks
        for block, planned, measured in block_rows(trace)
    ]
    return [
        {
            "stage": stage,
            "kind": KINDS[action],
            "rank": rank,
            "planned": round(planned),
            "measured": round(measured),
        }
        for stage, action, rank, planned, measured in sorted(rows)
    ]


def rank_rows(ranks: list[RankTrace]) -> list[dict]:
    """Per rank: nanoseconds of compute planned and measured, and the share of the step that is bubble."""
    length = pipeline(ranks)
    rows = []
    for trace in ranks:
        runs = Counter[tuple[int, str]](
            (i.stage, i.action) for i in trace.instructions if i.is_compute and not i.lane
        )
        times = [(runs[block[1:]], planned, measured) for block, planned, measured in block_rows(trace)]
        planned = round(sum(count * time for count, time, _ in times))
        measured = round(sum(count * time for count, _, time in times))
        rows.append(
            {
                "rank": trace.rank,
                "planned_busy": planned,
                "measured_busy": measured,
                "planned_bubble": 1 - planned / trace.makespan if trace.makespan else 0.0,
                "measured_bubble": max(0.0, 1 - measured / length) if length else 0.0,
                "peak_memory": trace.peak_memory,
                "peak_memory_of": trace.peak_memory_of,
            }
        )
    return rows


def pipeline(ranks: list[RankTrace]) -> int:
    """Nanoseconds from a step's begin to the last end of a block."""
    return max(trace.pipeline for trace in ranks)


def counted_steps(steps: int) -> int:
    """From which step on figures count: the first ones warm up."""
    return min(WARM_UP, steps - 1)


def step(ranks: list[RankTrace]) -> dict:
    """Nanoseconds: the plan's makespan, or its prediction where ranks share cores; the same with the optimizer's
    step, if known; the pipeline part of a step, from its start to the last end; and the wall clock of whole
    steps, including the optimizer."""
    slowest = [max(times) for times in zip(*(trace.step_seconds for trace in ranks), strict=False)]
    return {
        "predicted": ranks[0].predicted or ranks[0].makespan,
        "predicted_step": ranks[0].whole_step or None,
        "measured_pipeline": pipeline(ranks),
        "measured_step": round(statistics.median(slowest[counted_steps(len(slowest)) :]) * 1e9),
        "steps": len(slowest),
    }


def over(ranks: list[RankTrace]) -> str:
    """Of which steps the measured figures are."""
    steps = ranks[0].step
    first = counted_steps(steps) + 1
    whole = f"medians of steps {first} to {steps}" if first < steps else f"step {steps}"
    shown = ranks[0].blocks[0].steps if ranks[0].blocks else 1
    if shown == steps - first + 1:
        return f"Measured: {whole}."
    parts = "the last step" if shown == 1 else f"medians of the last {shown} steps"
    return f"Measured: whole steps, {whole}; blocks, ranks and pipeline, {parts}."


def planned_steps(ranks: list[RankTrace]) -> list[dict]:
    """One row per step, where each step gets its own plan; nanoseconds. Of several replicas' plans the one that
    ends last counts; `measured` is the longest time of a rank's part of the pipeline, `planning` the longest time
    that a rank waited for its plan."""
    rows = []
    for number, of_ranks in enumerate(zip(*(trace.step_plans for trace in ranks), strict=False), 1):
        last = max(of_ranks, key=lambda one: one.makespan)
        rows.append(
            {
                "step": number,
                "predicted": last.makespan,
                "lower_bound": last.lower_bound,
                "predicted_1f1b": last.one_f_one_b or None,
                "measured": max(one.measured for one in of_ranks),
                "planning": max(one.planning for one in of_ranks),
            }
        )
    return rows


def beside(mine: dict, other: dict) -> dict:
    """Compares two summaries: the other run's step, and how many times as long as mine it took."""
    keys = [key for key in mine["step"] if key != "steps" and mine["step"][key] and other["step"][key]]
    ratios = {key: other["step"][key] / mine["step"][key] for key in keys}
    return {"plan_sha256": other["plan_sha256"], "step": other["step"], "ratios": ratios}


def summary(ranks: list[RankTrace]) -> dict:
    of_step = step(ranks)
    return {
        "status": Status.DONE,
        "plan_sha256": ranks[0].plan_sha256,
        "over": over(ranks),
        "missing_devices": missing_devices(ranks),
        "step": of_step,
        "beside": [
            {"name": name, "predicted": time, "measured_step": measured or None}
            for name, time, measured in ranks[0].beside
        ],
        **(
            {"steps": rows}
            if (rows := planned_steps(ranks))
            else {"conclusions": conclusions(ranks, of_step)}
        ),
        "blocks": blocks(ranks),
        "ranks": rank_rows(ranks),
    }


def conclusions(ranks: list[RankTrace], of_step: dict) -> list[str]:
    return list(Measured.of(ranks).conclusions(of_step["predicted"], of_step["measured_pipeline"]))


def milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.2f}"


PEAKS = {"process": "peak of the process", "accelerator": "peak of the allocator", None: "peak memory"}
OF_THE_PROCESS = (
    "The peak of the process is not the plan's peak memory: a plan counts what layers and engine hold for the training; a process also "
    "holds Python, torch, other libraries, data and the allocator's cache."
)


def ratio(measured: float, planned: float) -> str:
    return f"{measured / planned:.2f}" if planned else "–"


class Paper(Console):
    """Lets the command handle a closed pipe."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column, justify="left" if column == "kind" else "right")
    for row in rows:
        made.add_row(*row)
    return made


def show(report: dict, console: Console) -> None:
    console.print(report["over"], highlight=False)
    if missing := report["missing_devices"]:
        console.print(
            f"Files of ranks on device {', '.join(map(str, missing))} are missing, so figures of the step and bubbles are only those of the ranks "
            "below: gather the rank-*.json of all nodes in one folder.",
            highlight=False,
        )
    rows = [
        [str(r["stage"]), r["kind"], str(r["rank"]), milliseconds(r["planned"]), milliseconds(r["measured"]),
         ratio(r["measured"], r["planned"])]
        for r in report["blocks"]
    ]  # fmt: skip
    title = "Blocks, predicted against measured (ms, means of a step's micro-batches)"
    console.print(table(title, ["stage", "kind", "rank", "predicted", "measured", "ratio"], rows))

    rows = [
        [str(r["rank"]), milliseconds(r["planned_busy"]), milliseconds(r["measured_busy"]),
         f"{r['planned_bubble']:.1%}", f"{r['measured_bubble']:.1%}",
         "–" if r["peak_memory"] is None else f"{r['peak_memory'] / 2**20:.1f} MiB"]
        for r in report["ranks"]
    ]  # fmt: skip
    held_by = report["ranks"][0]["peak_memory_of"]
    columns = [
        "rank",
        "busy predicted",
        "busy measured",
        "bubble predicted",
        "bubble measured",
        PEAKS[held_by],
    ]
    console.print(table("Ranks (ms of compute; bubble as a share of the step)", columns, rows))
    if held_by == "process":
        console.print(OF_THE_PROCESS, highlight=False)

    times = report["step"]
    console.print(
        f"Step: this plan predicted {times['predicted'] / 1e6:.1f} ms; pipeline part "
        f"{times['measured_pipeline'] / 1e6:.1f} ms ({ratio(times['measured_pipeline'], times['predicted'])}x); "
        f"{whole(times)}"
    )
    if "steps" in report:
        return show_steps(report["steps"], console)
    others = [
        (printable(one["name"]), one["predicted"], one["measured_step"] or 0) for one in report["beside"]
    ]
    if others:
        told = Gain(others, times["predicted"], times["predicted_step"] or 0)
        console.print(f"This plan was {told.headline}: {told.figures}", highlight=False, markup=False)
    for line in report["conclusions"]:
        console.print(line, highlight=False)


def whole(times: dict) -> str:
    took = f"{times['measured_step'] / 1e6:.1f} ms"
    if not times["predicted_step"]:
        return f"whole step, optimizer included: {took}"
    longer = ratio(times["measured_step"], times["predicted_step"])
    return f"whole step with the optimizer: predicted {times['predicted_step'] / 1e6:.1f} ms, measured {took}, {longer}x"


MOST_STEPS = 12  # steps with their own plans to show


def show_steps(rows: list[dict], console: Console) -> None:
    """Shows the last few steps, and means of those that count."""
    shown = [
        [str(r["step"]), milliseconds(r["predicted"]), f"{above(r):.2%}", milliseconds(r["predicted_1f1b"] or 0),
         milliseconds(r["measured"]), ratio(r["measured"], r["predicted"]), milliseconds(r["planning"])]
        for r in rows[-MOST_STEPS:]
    ]  # fmt: skip
    title = (
        "Steps planned for their sizes"
        + (f", the last {MOST_STEPS} of {len(rows)}" if len(rows) > MOST_STEPS else "")
        + " (ms)"
    )
    columns = [
        "step",
        "predicted",
        "above the bound",
        "1F1B, as the data came",
        "measured",
        "ratio",
        "planning",
    ]
    console.print(table(title, columns, shown))
    later = rows[counted_steps(len(rows)) :]
    mean = {key: statistics.fmean(r[key] or 0 for r in later) for key in rows[0] if key != "step"}
    usual = mean["predicted_1f1b"]
    saved = (
        f"; 1F1B would take {usual / 1e6:.1f} ms, and reordering saves {1 - mean['predicted'] / usual:.1%} of it"
        if usual
        else ""
    )
    console.print(
        f"Mean of {counted(len(later), 'step')}: predicted {mean['predicted'] / 1e6:.1f} ms, "
        f"{above(mean):.2%} above the bound{saved}; measured {mean['measured'] / 1e6:.1f} ms, planning "
        f"{mean['planning'] / 1e6:.2f} ms ({mean['planning'] / max(1, mean['measured']):.1%})",
        highlight=False,
    )


def above(row: dict) -> float:
    """How far a plan is above the proved bound, as a share of the bound."""
    return row["predicted"] / row["lower_bound"] - 1 if row["lower_bound"] else 0.0


def show_against(report: dict, folder: Path, console: Console) -> None:
    mine, other, ratios = report["step"], report["against"]["step"], report["against"]["ratios"]
    names = {"predicted": "predicted", "measured_pipeline": "pipeline part", "measured_step": "whole step"}
    rows = [
        [
            name,
            milliseconds(mine[key]),
            milliseconds(other[key]),
            f"{ratios[key]:.2f}" if key in ratios else "–",
        ]
        for key, name in names.items()
    ]
    title = f"Against {printable(str(folder))} (ms; ratio: other to this)"
    console.print(table(title, ["", "this", "other", "ratio"], rows))


def parser() -> Parser:
    p = Parser(
        prog="ostinato report",
        description="Compares predicted with measured times of a run, per block, rank and step.",
        epilog='example: ostinato report out/trace --perfetto out/trace.json   (with "trace": "out/trace" in ds_config.json)',
    )
    p.add_argument("trace", type=Path, help='the folder "trace" of the ostinato section')
    p.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write the last step as Perfetto/Chrome JSON"
    )
    p.add_argument(
        "--against", type=Path, metavar="TRACE", help="trace folder of another run, to compare steps with"
    )
    p.add_argument(
        "--profile", type=Path, metavar="PROFILE", help="profile that the plan was made from, for --measured"
    )
    p.add_argument(
        "--placement",
        type=Path,
        metavar="PLACEMENT",
        help="placement that ran (default: placement.toml beside the profile)",
    )
    p.add_argument(
        "--measured",
        type=Path,
        metavar="FOLDER",
        help="write the measured times to FOLDER, as profile.json and devices.toml",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return p


MEASURED = ("profile.json", "devices.toml")


def _write_measured(ranks: list[RankTrace], args: argparse.Namespace) -> None:
    if ranks[0].step_plans:
        raise TraceError(f"{args.trace}: every step had its own plan: profile again with --sizes")
    placement, profile = Placement.from_file(args.placement), Profile.from_file(args.profile)
    if placement.sha256 != ranks[0].placement_sha256:
        raise TraceError(f"{args.placement} is not the placement that ran: give that one with --placement")
    if missing := set(range(len(placement.devices))) - {trace.device for trace in ranks}:
        raise TraceError(
            f"{args.trace}: no file of a rank on device {', '.join(map(str, sorted(missing)))}: gather those of all ranks in one folder"
        )
    found = Measured.of(ranks, _speeds_of_adapted(args))
    again = replanned(found, placement.to_dict(), profile.to_dict())
    for name, text in zip(MEASURED, again, strict=True):
        write_text(args.measured / name, text)


def _speeds_of_adapted(args: argparse.Namespace) -> list[float]:
    """Of the devices that "adapt" has made the placement for; []: it has not."""
    base = args.placement.parent / ADAPTED / BASE
    if not base.is_file():
        return []
    if args.profile.read_bytes() != base.read_bytes():
        raise TraceError(
            f'{args.placement} was not made from {args.profile}, because "adapt" has measured since: use --profile {base} --placement {args.placement}'
        )
    speeds = base.with_name(BASE_DEVICES)
    return speeds_in(speeds.read_text()) if speeds.is_file() else []


def _read(folder: Path) -> list[RankTrace]:
    """The ranks' traces: at least one rank computes, else there are no blocks to compare."""
    ranks = read_traces(folder)
    if not any(i.is_compute for trace in ranks for i in trace.instructions):
        raise TraceError(
            f"{trace_files(folder)[0]}: no instruction computes: gather the files of all ranks in one folder"
        )
    return ranks


def _check_files(args: argparse.Namespace) -> None:
    """Raises TraceError where --measured cannot read or write, before the traces are read."""
    if not args.profile.is_file():
        raise TraceError(f"{args.profile}: {no_file(args.profile)}")
    if not args.placement.is_file():
        raise TraceError(f"{args.placement}: {no_file(args.placement)}; --placement names what ran")
    if args.measured.exists() and not args.measured.is_dir():
        raise TraceError(f"--measured {args.measured}: this is a file; give a folder")


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    outputs = {"--perfetto": args.perfetto}
    if not args.measured and (args.profile or args.placement):
        return fail_usage("report", argv, "--profile and --placement are for --measured: add it")
    if args.measured:
        if args.profile is None:
            return fail_usage(
                "report", argv, "--measured needs --profile, the profile that the plan was made from"
            )
        args.placement = args.placement or args.profile.parent / "placement.toml"
        outputs |= {f"--measured {name}": args.measured / name for name in MEASURED}
    read = [
        *trace_files(args.trace),
        *(trace_files(args.against) if args.against else []),
        *filter(None, (args.profile, args.placement)),
    ]
    if wrong := why_not_apart(outputs, read):
        return fail_usage("report", argv, wrong)
    try:
        if args.measured:
            _check_files(args)
        if wrong := why_not_all(outputs):
            raise TraceError(wrong)
        ranks = _read(args.trace)
        if args.perfetto:
            write_text(args.perfetto, json.dumps(perfetto(ranks)))
        told = summary(ranks)
        if args.measured:
            _write_measured(ranks, args)
        if args.against:
            told["against"] = beside(told, summary(_read(args.against)))
    except (Error, OSError) as error:
        return fail("report", argv, Status.BAD_INPUT, str(error))
    if args.json:
        print(json.dumps(told))
        return Status.DONE
    console = Paper()
    show(told, console)
    if args.against:
        show_against(told, args.against, console)
    if args.measured:
        profile, devices = (args.measured / name for name in MEASURED)
        console.print(
            f"Plan again: ostinato plan {profile} --devices {devices} ...", highlight=False, soft_wrap=True
        )
    return Status.DONE
