"""`ostinato profile`: from a training script to a profile."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ostinato import _profiler
from ostinato.profile.errors import BAD_INPUT, CHECK_FAILED, ProfileError
from ostinato.profile.run import profile_layers
from ostinato.profile.script import capture
from ostinato.profile.table import show, summary
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
        description="Measures every layer and operator of the PipelineModule that a DeepSpeed script trains. The "
        "script runs unchanged, as one rank, up to its first train_batch(). Exit status 6: the profile is not complete.",
        epilog="example: ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json",
    )
    p.add_argument("script", type=Path, metavar="TRAIN.py", help="the training script; its arguments follow --")
    p.add_argument(
        "-o", "--output", type=Path, default=Path("profile.json"), help="where the profile goes (%(default)s)"
    )
    p.add_argument("--repeats", type=positive, default=20, help="measurements of each layer (%(default)s)")
    p.add_argument("--warm-up", type=natural, default=3, help="rounds before them that do not count (%(default)s)")
    ranks = "processes whose transfers are measured, pair by pair; two stand for all (%(default)s)"
    p.add_argument("--ranks", type=positive, default=2, help=ranks)
    p.add_argument("--no-transfers", action="store_true", help="do not measure transfers")
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


def profile_script(args: argparse.Namespace, script_arguments: list[str]) -> Any:
    with script_output_aside():
        job = capture(args.script, script_arguments)
        job.repeats, job.warm_up = args.repeats, args.warm_up
        with shown_progress() as progress:
            profile = profile_layers(job, progress)
        if not args.no_transfers:
            profile.transfers = measure_transfers(args.ranks)
    return profile


def report(profile: Any, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(summary(profile, str(args.output))))
        return
    console = Console()
    show(profile, console)
    console.print(f"wrote {args.output}", highlight=False, soft_wrap=True)


def main(argv: list[str]) -> int:
    ours, script_arguments = split_arguments(argv)
    args = parser().parse_args(ours)
    try:
        profile = profile_script(args, script_arguments)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        profile.write(str(args.output))
    except (ProfileError, _profiler.InputError) as error:
        print(f"ostinato profile: {error}", file=sys.stderr)
        return getattr(error, "status", BAD_INPUT)
    except KeyboardInterrupt:
        print("ostinato profile: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    report(profile, args)
    return 0 if profile.completeness.complete else CHECK_FAILED
