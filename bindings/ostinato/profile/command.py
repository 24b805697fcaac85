"""`ostinato profile`: from a training script to a profile."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ostinato import _profiler
from ostinato.files import write_text
from ostinato.profile.check import Check, check_profile
from ostinato.profile.device import device_of_this_process
from ostinato.profile.errors import BAD_INPUT, CHECK_FAILED, ProfileError
from ostinato.profile.exported import ARCHIVE, TORCHSCRIPT, load_exported
from ostinato.profile.job import Job
from ostinato.profile.launched import Part, file_of_kind, meet, world
from ostinato.profile.memory import Recording, record_memory
from ostinato.profile.page import html
from ostinato.profile.perfetto import perfetto
from ostinato.profile.run import profile_layers
from ostinato.profile.script import capture
from ostinato.profile.table import check_table, show, summary
from ostinato.profile.transfers import measure_transfers

INTERRUPTED = 130


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {number}")
    return number


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="ostinato profile",
        usage="%(prog)s [options] TRAIN.py [-- ARGUMENT ...]",
        description="Measures every layer and operator of the model that a DeepSpeed script trains: layer by layer where it "
        "is a PipelineModule, else operator by operator, with its branches. The script runs unchanged, as one rank, up to "
        "its first training step. Started by torchrun, deepspeed or Slurm, once a rank, it measures the transfers between those "
        "ranks, and each kind of device by itself. A torch.export archive (.pt2) is profiled on its example inputs; a TorchScript "
        "program by ostinato-profile, without Python. Exit status 6: the profile is not complete.",
        epilog="example: ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json",
    )
    p.add_argument("script", type=Path, metavar="TRAIN.py", help="the training script (its arguments follow --), or an archive of torch.export")
    p.add_argument(
        "-o", "--output", type=Path, default=Path("profile.json"), help="where the profile goes (%(default)s)"
    )
    p.add_argument("--repeats", type=positive, default=20, help="measurements of each layer (%(default)s)")
    p.add_argument("--warm-up", type=natural, default=3, help="rounds before them that do not count (%(default)s)")
    ranks = "processes whose transfers are measured, pair by pair; two stand for all (%(default)s)"
    p.add_argument("--ranks", type=positive, default=2, help=ranks)
    kind = "kind of the device that is measured, as a placement's devices name it ($OSTINATO_DEVICE_KIND, else the GPU's name, or cpu)"
    p.add_argument("--kind", default=os.environ.get("OSTINATO_DEVICE_KIND"), help=kind)
    p.add_argument("--no-transfers", action="store_true", help="do not measure transfers")
    again = "measure the model once more as STAGES stages, and print it beside what the profile predicts"
    p.add_argument("--check", type=positive, metavar="STAGES", help=again)
    p.add_argument("--html", type=Path, metavar="PAGE", help="a flame chart of a micro-batch, its memory, its layers")
    p.add_argument("--perfetto", type=Path, metavar="TRACE", help="the same for ui.perfetto.dev or chrome://tracing")
    drawn = "ranks that the page and the trace show, each with a stage of about equal time (as --check, else 1)"
    p.add_argument("--draw-ranks", type=positive, metavar="RANKS", help=drawn)
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return p


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Ours, and the script's after `--`."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


@contextmanager
def script_output_aside() -> Iterator[None]:
    """What the script and its libraries print goes to standard error, whatever they print it with."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def shown_progress() -> Iterator[Any]:
    """A function for profile_layers(); it shows something on a terminal only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def advance(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done)

        yield advance


def job_of(path: Path, script_arguments: list[str]) -> Job:
    """What the training script trains, or what an archive holds."""
    if path.suffix == ARCHIVE:
        return load_exported(path)
    if path.suffix in TORCHSCRIPT:
        raise ProfileError(f"{path} is no script: ostinato-profile measures TorchScript programs, without Python")
    return capture(path, script_arguments)


def ranks_drawn(args: argparse.Namespace) -> int:
    return args.draw_ranks or args.check or 1


@dataclass
class Result:
    profile: Any
    checks: list[Check]
    recordings: list[Recording | None]  # one a rank that is drawn; empty: nothing is


def profile_script(args: argparse.Namespace, script_arguments: list[str], part: Part) -> Result:
    with script_output_aside():
        job = job_of(args.script, script_arguments)
        job.repeats, job.warm_up, job.kind = args.repeats, args.warm_up, args.kind
        with shown_progress() as progress:
            profile = profile_layers(job, progress)
            checks = check_profile(job, profile, args.check, progress) if args.check else []
            drawn = record_memory(job, profile, ranks_drawn(args), progress) if args.html or args.perfetto else []
        if part.transfers or args.no_transfers:
            profile.transfers = part.transfers
        else:
            profile.transfers = measure_transfers(args.ranks, job.device)
    return Result(profile, checks, drawn)


def my_part(args: argparse.Namespace) -> Part:
    rank, ranks = world()
    if ranks < 2:
        return Part(True, [args.kind], [])
    return meet(rank, ranks, args.kind, device_of_this_process(), not args.no_transfers)


def write(result: Result, args: argparse.Namespace) -> list[Path]:
    """The files that were asked for, written whole or not at all."""
    shown = result.profile, ranks_drawn(args), result.recordings
    views = {args.html: lambda: html(*shown), args.perfetto: lambda: perfetto(*shown)}
    wanted = {args.output: result.profile.json, **views}
    files = {path: text for path, text in wanted.items() if path is not None}
    for path, text in files.items():
        write_text(path, text())
    return list(files)


def report(profile: Any, checks: list[Check], files: list[Path], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(summary(profile, str(args.output)) | {"check": [asdict(check) for check in checks]}))
        return
    console = Console()
    show(profile, console)
    if checks:
        console.print(check_table(profile, checks))
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def main(argv: list[str]) -> int:
    ours, script_arguments = split_arguments(argv)
    args = parser().parse_args(ours)
    try:
        args.kind = args.kind or device_of_this_process().kind
        part = my_part(args)
        if not part.profiles:
            return 0
        args.output = file_of_kind(args.output, args.kind, part.kinds)
        result = profile_script(args, script_arguments, part)
        files = write(result, args)
    except (ProfileError, _profiler.InputError) as error:
        print(f"ostinato profile: {error}", file=sys.stderr)
        return getattr(error, "status", BAD_INPUT)
    except KeyboardInterrupt:
        print("ostinato profile: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    report(result.profile, result.checks, files, args)
    return 0 if result.profile.completeness.complete else CHECK_FAILED
