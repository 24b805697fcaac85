# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end: profile, partition, search, lower, train; then the same with DeepSpeed's own
1F1B.

    script/demo                    # both jobs, results in out/
    .venv/bin/python examples/demo.py --job emulated --steps 10

Two jobs: `gpt` is a byte-level GPT on the source of Python's standard library, on ranks with a core each,
where this machine has two or more; `emulated` has layers that sleep for given times on four ranks, so that
the schedule alone decides the time of a step.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MOST_RANKS, MICRO_BATCHES = 4, 8
console = Console(soft_wrap=True)


@dataclass
class Job:
    """One model to train both ways. `plan`: options of `ostinato plan`; `steps`: of each training."""

    name: str
    title: str
    ranks: int
    plan: list[str]
    steps: int
    out: Path

    @property
    def example(self) -> Path:
        return ROOT / "examples" / self.name


def environment() -> dict[str, str]:
    """A CPU run with one thread a rank; DeepSpeed's own compiled operators stay beside the virtual
    environment."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    extensions = str(BIN.parent / "torch_extensions")
    return {
        "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **os.environ,
        "PATH": path, "TORCH_EXTENSIONS_DIR": extensions, "DEEPSPEED_LOG_LEVEL": "warning",
    }  # fmt: skip


def cores() -> int:
    return len(os.sched_getaffinity(0))


def relative(argument: str) -> str:
    return os.path.relpath(argument, ROOT) if os.path.isabs(argument) else argument


def run(*arguments, quiet: bool = False, capture: bool = False) -> str:
    """Runs a command as a user would type it from the repository's root, and prints it so."""
    command = [relative(str(argument)) for argument in arguments]
    if not quiet:
        console.print(f"\n[bold]$ {shlex.join(command)}[/bold]", highlight=False)
    result = subprocess.run(
        command, cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE if capture else None
    )
    if result.returncode != 0:
        sys.exit(f"demo: {shlex.join(command)} ended with status {result.returncode}")
    return result.stdout or ""


def ostinato(*arguments) -> str:
    return run(BIN / "ostinato", *arguments)


def plan(job: Job) -> None:
    """profile → partition → search → proof → lowering, all as commands; leaves the files in the job's folder."""
    config, out = job.example / "ds_config.json", job.out
    ostinato("profile", job.example / "train.py", "--output", out / "profile.json", "--", "--deepspeed_config", config,
             "--stages", job.ranks)  # fmt: skip
    ostinato(
        "plan", out / "profile.json", "--devices", job.ranks, "--all-devices", "--micro-batches", MICRO_BATCHES, *job.plan,
        "--placement-output", out / "placement.toml", "--output", out / "plan.json",
    )  # fmt: skip
    ostinato("verify", out / "plan.json", out / "placement.toml")
    ostinato("show", out / "plan.json", out / "placement.toml", "--html", out / "plan.html")
    (out / "programs.txt").write_text(
        run(BIN / "ostinato", "lower", out / "plan.json", out / "placement.toml", capture=True)
    )


def train(job: Job, section: dict | None, name: str) -> dict:
    """Trains with the example's configuration, and with the section where one is given. Returns losses and
    seconds."""
    config = json.loads((job.example / "ds_config.json").read_text())
    if section is not None:
        config["ostinato"] = section
    config_path, record = job.out / f"ds_config.{name}.json", job.out / f"training.{name}.json"
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    run(
        BIN / "torchrun", "--standalone", "--nproc-per-node", job.ranks, job.example / "train.py",
        "--deepspeed_config", config_path, "--stages", job.ranks, "--steps", job.steps, "--record", record,
    )  # fmt: skip
    return json.loads(record.read_text())


def reference_1f1b(job: Job) -> float | None:
    """The seconds of a step that 1F1B would have on its own best placement, one chunk a device."""
    placement, result = job.out / "placement.1f1b.toml", job.out / "plan.1f1b.json"
    run(BIN / "ostinato", "partition", job.out / "profile.json", "--devices", job.ranks, "--micro-batches", MICRO_BATCHES,
        "--output", placement, quiet=True, capture=True)  # fmt: skip
    found = json.loads(run(BIN / "ostinato", "search", placement, "--micro-batches", MICRO_BATCHES, "--method", "1f1b",
                           "--output", result, "--json", quiet=True, capture=True))  # fmt: skip
    return found.get("whole_step", found["makespan"]) / 1e9


def show_losses(job: Job, ours: list[float], theirs: list[float]) -> None:
    table = Table(title=f"Losses, {job.title}", title_justify="left")
    for column in ("step", "ostinato", "DeepSpeed 1F1B", "equal bit for bit"):
        table.add_column(column, justify="right")
    shown = sorted({*range(0, len(ours), max(1, len(ours) // 10)), len(ours) - 1})
    for step in shown:
        table.add_row(
            str(step),
            f"{ours[step]:.6f}",
            f"{theirs[step]:.6f}",
            "yes" if ours[step] == theirs[step] else "NO",
        )
    console.print(table)
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    console.print(f"{equal} of {len(ours)} losses are equal bit for bit")


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"


def show_times(job: Job, result: dict) -> None:
    seconds, makespan = result["step_seconds"], result["makespan_seconds"]
    table = Table(title=f"A step, {job.title}", title_justify="left")
    for column in ("", "predicted", "measured"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("ostinato", milliseconds(seconds["predicted"]), milliseconds(seconds["measured"]))
    table.add_row("  forward + backward", milliseconds(makespan["ostinato"]), "")
    table.add_row("  lower bound of any schedule", milliseconds(makespan["lower_bound"]), "")
    table.add_row("DeepSpeed 1F1B, its own partition", "", milliseconds(seconds["deepspeed_1f1b"]))
    table.add_row("1F1B on the best one-chunk partition", milliseconds(seconds["1f1b"]), "")
    console.print(table)
    ratio = seconds["deepspeed_1f1b"] / seconds["measured"]
    console.print(f"DeepSpeed 1F1B takes {ratio:.2f} times as long as ostinato's plan", highlight=False)
    if job.name == "gpt" and job.ranks > cores():
        console.print(f"({job.ranks} ranks share {cores()} core here, so the measured steps show the core's limit, "
                      "not the schedule's; the emulated job is where the schedule shows)", highlight=False)  # fmt: skip
    peaks = ", ".join(f"{peak / 2**20:.1f}" for peak in result["peak_memory"]["planned"])
    console.print(f"Peak memory planned per rank: {peaks} MiB", highlight=False)


def go(job: Job) -> dict:
    console.rule(f"[bold]{job.title}")
    job.out.mkdir(parents=True, exist_ok=True)
    plan(job)
    section = {"plan": "plan.json", "placement": "placement.toml", "trace": "trace", "require": True}
    ours = train(job, section, "ostinato")
    ostinato("report", job.out / "trace", "--perfetto", job.out / "trace.json")
    theirs = train(job, None, "deepspeed")
    found = json.loads((job.out / "plan.json").read_text())
    report = json.loads(
        run(BIN / "ostinato", "report", job.out / "trace", "--json", quiet=True, capture=True)
    )
    result = {
        "losses": {"ostinato": ours["losses"], "deepspeed_1f1b": theirs["losses"]},
        "losses_equal": ours["losses"] == theirs["losses"],
        "step_seconds": {
            "measured": statistics.median(ours["seconds"][1:]),
            "predicted": (report["step"]["predicted_step"] or found["makespan"]) / 1e9,
            "deepspeed_1f1b": statistics.median(theirs["seconds"][1:]),
            "1f1b": reference_1f1b(job),
        },
        "makespan_seconds": {
            "ostinato": found["makespan"] / 1e9,
            "lower_bound": found["lower_bound"]["makespan"] / 1e9,
        },
        "optimal": found["optimal"],
        "peak_memory": {
            "planned": found["peak_memory"],
            "measured": [rank["peak_memory"] for rank in report["ranks"]],
        },
    }
    console.print()
    show_losses(job, ours["losses"], theirs["losses"])
    show_times(job, result)
    return result


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=("gpt", "emulated"), action="append", help="default: both")
    parser.add_argument("--steps", type=int, default=20, help="of each training (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out", help="folder for the results (default: out)"
    )
    return parser.parse_args()


def main():
    args = arguments()
    out = args.out.resolve()
    jobs = {
        "gpt": Job(
            "gpt", "byte-level GPT", max(2, min(MOST_RANKS, cores())), ["--exact-losses"], args.steps, out
        ),
        "emulated": Job(
            "emulated", "emulated stage times", MOST_RANKS, ["--exact-losses"], args.steps, out / "emulated"
        ),
    }
    results = {name: go(jobs[name]) for name in args.job or jobs}
    summary = {
        **results.get("gpt", {}),
        **({"emulated": results["emulated"]} if "emulated" in results else {}),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    console.print(
        f"Results: {relative(str(out / 'summary.json'))}, plan.html, trace.json (open in ui.perfetto.dev)"
    )
    if not all(result["losses_equal"] for result in results.values()):
        sys.exit("demo: the losses of ostinato and of DeepSpeed's 1F1B differ")


if __name__ == "__main__":
    main()
