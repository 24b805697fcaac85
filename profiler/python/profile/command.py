# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile`: from a training script to a profile."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from rich.progress import Progress

from ostinato import _profiler
from ostinato.errors import Status, counted, fail, interrupted_by_sigterm
from ostinato.files import why_not_all, why_not_apart, write_text
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.block_time import count_blocks
from ostinato.profile.machine.counted import check_counted
from ostinato.profile.machine.device import Cpu, device_of_this_process
from ostinato.profile.machine.launched import (
    ALONE,
    TOGETHER,
    WaitingRanks,
    Role,
    file_of_kind,
    meet,
    run_in_engine,
    world,
)
from ostinato.profile.machine.transfers import given_transfers, measure_transfers, too_few_gpus
from ostinato.profile.measure.check import StageCheck, check_profile, refuse_graph
from ostinato.profile.measure.neighbours import most_beside
from ostinato.profile.measure.rank_memory import Recording, record_memory
from ostinato.profile.model.archives import EXPORTED, TORCHSCRIPT, load_exported, load_script
from ostinato.profile.model.job import Job
from ostinato.profile.model.made_up import MadeUpLoss
from ostinato.profile.options import arguments_of, parser, split_arguments
from ostinato.profile.run import profile_layers
from ostinato.profile.script.first_step import Attempt, ScriptRun, check_script
from ostinato.profile.views.page import html
from ostinato.profile.views.perfetto import perfetto
from ostinato.profile.views.table import check_table, show, summary

PROGRAM_OPTIONS = ("input", "depth", "loss", "optimizer_numbers", "eval")
AGAIN = "OSTINATO_PROFILE_AGAIN"  # a file that start_again() leaves for the process that it starts


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Any]:
    """A progress function for profile_layers(), which shows something only on a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def advance(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done)

        yield advance


def is_program(args: argparse.Namespace) -> bool:
    """Whether the file is a TorchScript program. Raises ProfileError for options that need one, if it is not, and for
    ONNX."""
    suffix = args.script.suffix
    if suffix == ".onnx" and not args.module:
        raise ProfileError(
            f"{args.script}: ONNX is not read; profile the script that trains the model, or save it with torch.export.save() as .pt2",
            Status.USAGE,
        )
    found = not args.module and (
        suffix in TORCHSCRIPT or (bool(args.input) and suffix not in (EXPORTED, ".py"))
    )
    given = [
        name
        for name in PROGRAM_OPTIONS
        if getattr(args, name) is not None
        and getattr(args, name) is not False
        and not (name == "optimizer_numbers" and suffix == EXPORTED)
    ]
    if given and not found:
        option = "--" + given[0].replace("_", "-")
        raise ProfileError(
            f"{option} is for a TorchScript program, which {args.script} is not: remove it", Status.USAGE
        )
    return found


def job_of_program(args: argparse.Namespace) -> Job:
    """The job of a file that is not a script."""
    if is_program(args):
        job = load_script(args.script, args.input or [], train=not args.eval)
        job.depth = args.depth
        job.loss_fn = None if args.loss is None else MadeUpLoss(args.loss)
    else:
        job = load_exported(args.script)
    if args.optimizer_numbers is not None:
        job.optimizer_numbers = args.optimizer_numbers
    return job


@dataclass
class Result:
    profile: Any
    checks: list[StageCheck]
    recordings: list[Recording | None]  # one per rank to draw; empty: draws none


def my_part(args: argparse.Namespace) -> Role:
    rank, ranks = world()
    if ranks < 2:
        return Role(True, [args.kind])
    return meet(rank, ranks, args.kind, device_of_this_process(), not args.no_transfers)


def outputs(args: argparse.Namespace) -> dict[str, Path | None]:
    return {"--output": args.output, "--html": args.html, "--perfetto": args.perfetto}


def inputs(args: argparse.Namespace, script_arguments: list[str]) -> list[Path]:
    """The script, and what its arguments may name: `--deepspeed_config ds.json` or
    `--deepspeed_config=ds.json`."""
    script = Path(*str(args.script).split(".")) if args.module else args.script
    scripts = [script.with_suffix(".py"), script / "__main__.py"] if args.module else [script]
    words = [word for argument in script_arguments for word in (argument, argument.partition("=")[2]) if word]
    return [*scripts, *map(Path, words)]


def check_outputs(args: argparse.Namespace, script_arguments: list[str]) -> None:
    """Checks the outputs, before measuring anything."""
    if wrong := why_not_apart(outputs(args), inputs(args, script_arguments)):
        raise ProfileError(f"{wrong}\nTry: ostinato profile --help", Status.USAGE)
    if wrong := why_not_all(outputs(args)):
        raise ProfileError(wrong)


def write(result: Result, args: argparse.Namespace, folder: Path) -> list[Path]:
    """Writes the files that were asked for, each completely or not at all. `folder`: where relative paths start."""
    shown = result.profile, args.check or 1, result.recordings
    views = {args.html: lambda: html(*shown), args.perfetto: lambda: perfetto(*shown)}
    wanted = [(args.output, result.profile.json), *views.items()]
    files = [(path, text) for path, text in wanted if path is not None]
    for path, text in files:
        try:
            write_text(folder / path, text())
        except OSError as error:
            raise ProfileError(f"{path} cannot be written: {error.strerror}") from error
    return [path for path, _ in files]


def status_of(profile: Any) -> Status:
    return Status.DONE if profile.completeness.complete else Status.CHECK_FAILED


def report(profile: Any, checks: list[StageCheck], files: list[Path], args: argparse.Namespace) -> None:
    if args.json:
        told = summary(profile, str(args.output)) | {"check": [asdict(check) for check in checks]}
        sys.stdout.write(json.dumps({"status": status_of(profile)} | told) + "\n")
        return
    if args.quiet:
        return
    console = Console()
    show(profile, console)
    if checks:
        console.print(check_table(profile, checks))
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


class Output:
    """While a script runs, sends everything that it and its libraries print to standard error."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self.stdout, self.stderr, self.kept = sys.stdout, sys.stderr, os.dup(1)
        os.dup2(2, 1)

    def aside(self) -> bool:
        return self.kept >= 0

    def back(self) -> None:
        """Restores standard output, even if the script has replaced Python's streams."""
        if self.aside():
            sys.stdout.flush()
            sys.stdout, sys.stderr = self.stdout, self.stderr
            sys.stdout.flush()
            os.dup2(self.kept, 1)
            os.close(self.kept)
            self.kept = -1


def leave(status: int) -> NoReturn:
    """Ends the process in the middle of the script. Runs the script's atexit handlers."""
    for child in multiprocessing.active_children():  # workers of its data loaders
        child.terminate()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


class Work:
    """Profiles what the script trains, from inside its first step, and ends the process there, because a script
    might catch every exception and go on."""

    def __init__(
        self,
        args: argparse.Namespace,
        argv: list[str],
        script_arguments: list[str],
        part: Role,
        waiting: WaitingRanks | None,
    ):
        self.args, self.argv, self.script_arguments, self.part = args, argv, script_arguments, part
        self.waiting = waiting
        self.folder = Path.cwd()
        self.environment = dict(os.environ)
        self.output = Output()
        self.leave = os._exit
        self.written = ""  # in words, once the profile is, but for transfers

    def take(self, job: Job) -> NoReturn:
        leave(self.status_of(lambda: self.profile(job)))

    def fail(self, error: BaseException) -> NoReturn:
        def again() -> int:
            raise error

        leave(self.status_of(again))

    def status_of(self, work: Callable[[], int]) -> int:
        """The exit status that `work` returns, or that its error says."""
        os._exit = self.leave  # the script's end is ours from here on
        try:
            return work()
        except (ProfileError, _profiler.InputError) as error:
            self.output.back()
            return fail("profile", self.argv, getattr(error, "status", Status.BAD_INPUT), str(error))
        except KeyboardInterrupt:
            self.output.back()
            written = f"{self.written} transfers" if self.written else "nothing was written"
            return fail("profile", self.argv, Status.INTERRUPTED, f"interrupted, {written}")
        except Exception as error:  # the script must not catch it
            self.output.back()
            traceback.print_exception(error)
            return Status.INTERNAL_ERROR
        finally:
            self.output.back()
            if self.waiting is not None:
                self.waiting.tell(ALONE)

    def profile(self, job: Job) -> int:
        """Measures, writes and reports; returns the exit status."""
        if job.slices > 1:
            if self.waiting is not None and self.part.ranks == job.ranks:
                return self.profile_together(job)
            sys.stderr.write(
                f"ostinato profile: layers are sliced over {job.slices} ranks, and the collectives between these take no time "
                f"here: torchrun with {job.ranks} ranks and -m ostinato profile measures them\n"
            )
        args = self.args
        job.repeats = args.repeats
        job.warm_up = args.warm_up
        job.kind = args.kind
        job.beside = self.beside(job)
        job.lengths = args.sizes
        if args.check:
            refuse_graph(job)
        with shown_progress(args.quiet) as progress:
            profile = self.layers_of(job, progress)
            checks = check_profile(job, profile, args.check, progress) if args.check else []
            drawn = (
                record_memory(job, profile, args.check or 1, progress) if args.html or args.perfetto else []
            )
        profile.transfers = self.given()
        result = Result(profile, checks, drawn)
        if not args.no_transfers:
            self.add_transfers(job, result)
        return self.end_with(result)

    def profile_together(self, job: Job) -> int:
        """The same with layers that are sliced over ranks: on all ranks of the launch, in DeepSpeed's engine."""
        args = self.args
        for name in ("check", "sizes", "perfetto"):
            if getattr(args, name):
                raise ProfileError(
                    f"--{name} does not go with layers that are sliced over ranks: remove it", Status.USAGE
                )
        assert self.waiting is not None
        self.waiting.tell(TOGETHER)
        sys.stderr.write(
            f"ostinato profile: layers are sliced over {job.slices} ranks: all {job.ranks} ranks measure them, in DeepSpeed's engine"
            f"{self.unheeded()}\n"
        )
        profile = self.run_together()
        if profile is None:
            raise ProfileError(f"{args.script} ended in DeepSpeed's engine before its layers were measured")
        profile.model = job.name
        profile.set_device(kind=args.kind, torch=torch.__version__, **job.device.description())
        profile.transfers = self.given() or self.part.transfers()
        return self.end_with(Result(profile, [], []))

    def unheeded(self) -> str:
        """Of the options that were given, those that DeepSpeed's engine knows nothing of, which measures as "auto" does."""
        usual = parser()
        names = ("repeats", "warm_up", "beside")
        given = [name for name in names if getattr(self.args, name) != usual.get_default(name)]
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        return f", where {options} {'have' if given[1:] else 'has'} no effect" if given else ""

    def run_together(self) -> Any:
        """This rank's part, which every rank of the launch runs. Returns the profile on rank 0, else None."""
        with tempfile.TemporaryDirectory(prefix="ostinato-profile-") as name:
            args, written = self.args, Path(name) / "profile.json"
            status = run_in_engine(
                args.script, args.module, self.script_arguments, Path(name), self.folder, self.environment
            )
            if status:
                raise ProfileError(f"{args.script} ended with status {status} in DeepSpeed's engine", status)
            return _profiler.read_profile(str(written)) if written.is_file() else None

    def accompany(self) -> int:
        self.run_together()
        return Status.DONE

    def end_with(self, result: Result) -> int:
        self.output.back()
        files = write(result, self.args, self.folder)
        # The reader of the pipe has gone, which rich reports so.
        with contextlib.suppress(BrokenPipeError, SystemExit):
            report(result.profile, result.checks, files, self.args)
        return status_of(result.profile)

    def beside(self, job: Job) -> int:
        """How many processes compute at the same time. None beside an accelerator, which has its own clock, or an
        archive, which is not trained here."""
        if not isinstance(job.device, Cpu):
            if self.args.beside:
                raise ProfileError(f"--beside is for CPUs, but this rank computes on {job.device.place}")
            return 0
        if self.args.beside is not None or not job.config:
            return self.args.beside or 0
        return most_beside(int(self.environment.get("LOCAL_WORLD_SIZE", job.ranks)))

    def add_transfers(self, job: Job, result: Result) -> None:
        """Writes the files before that, and again if only a part fails: layers may have taken an hour. Raises
        ProfileError."""
        write(result, self.args, self.folder)
        self.written = f"{self.args.output} was written without"
        gc.collect()  # the processes that measure may share this one's GPU
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            self.measure_transfers(job, result.profile)
        except ProfileError as error:
            lacks = "transfers"
            if result.profile.transfers:
                write(result, self.args, self.folder)
                lacks = "what blocks cost"
            raise ProfileError(f"{error}\n{self.written} {lacks}", Status.MISSING) from error

    def measure_transfers(self, job: Job, profile: Any) -> None:
        """Also measures what blocks cost. Raises ProfileError."""
        try:
            profile.transfers = (
                profile.transfers or self.part.transfers() or measure_transfers(self.args.ranks, job.device)
            )
            if not profile.transfers:
                sys.stderr.write(f"ostinato profile: {too_few_gpus(self.args.ranks, job.device)}\n")
            if job.config:  # an archive is not trained here
                count_blocks(profile.rank, profile.layers, job.device)
        except ProfileError as error:
            hint = "" if "--no-transfers" in str(error) else ": --no-transfers skips this"
            raise ProfileError(f"{error}{hint}", error.status) from error

    def given(self) -> list[Any]:
        """The transfers that the options give."""
        latency, bandwidth = self.args.latency, self.args.bandwidth
        return [] if latency is None and bandwidth is None else given_transfers(latency or 0, bandwidth or 0)

    def layers_of(self, job: Job, progress: Any) -> Any:
        """The profile of the layers, without the loss if only the last stage's iterator has labels."""
        try:
            return profile_layers(job, progress)
        except ProfileError as error:
            if job.labels is not None or job.loss_fn is None or job.module is not None:
                raise
            told, job.loss_fn = str(error), None
        profile = profile_layers(job, progress)
        sys.stderr.write(
            f"ostinato profile: the profile lacks the loss, because rank 0's batch has no labels ({told})\n"
        )
        return profile

    def start_again(self, attempt: Attempt) -> NoReturn:
        """Replaces the process by the same command, with the world size that the script wants; measurements are
        kept."""
        if not self.args.quiet:
            sys.stderr.write(
                f"ostinato profile: starting the script again with a world of {counted(attempt.size, 'rank')}\n"
            )
        self.output.back()
        for child in multiprocessing.active_children():
            child.terminate()
        handle, name = tempfile.mkstemp(prefix="ostinato-profile-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump({"attempt": asdict(attempt), "part": asdict(self.part)}, file)
        sys.stderr.flush()
        os.chdir(self.folder)
        ours = len(self.argv) and sys.orig_argv[-len(self.argv) :] == self.argv
        command = sys.orig_argv[1:] if ours else ["-m", "ostinato.profile", *self.argv]
        os.execve(sys.executable, [sys.executable, *command], self.environment | {AGAIN: name})


def resumed() -> tuple[Attempt, Role] | None:
    """What start_again() has left for this process; None if it was not started so."""
    name = os.environ.pop(AGAIN, None)
    if name is None:
        return None
    kept = json.loads(Path(name).read_text())
    os.unlink(name)
    return Attempt(**kept["attempt"]), Role(**kept["part"])


def run(args: argparse.Namespace, argv: list[str], script_arguments: list[str]) -> int:
    device = device_of_this_process()
    check_counted(device)
    args.kind = args.kind or device.kind
    saved = is_program(args) or not args.module and args.script.suffix == EXPORTED
    if not saved:
        check_script(args.script, args.module)
    check_outputs(args, script_arguments)
    attempt, part = resumed() or (None, my_part(args))
    waiting = None if saved else WaitingRanks.of(part)
    if not part.profiles:
        if waiting is None or waiting.told() == ALONE:
            return 0
        work = Work(args, argv, script_arguments, part, None)
        return work.status_of(work.accompany)
    for name in ("output", "html", "perfetto"):
        if getattr(args, name) is not None:
            setattr(args, name, file_of_kind(getattr(args, name), args.kind, part.kinds))
    check_outputs(args, script_arguments)
    if attempt is None:
        attempt = Attempt(args.world_size or max(part.ranks, 1), fixed=args.world_size is not None)
    work = Work(args, argv, script_arguments, part, waiting)
    if saved:
        return work.status_of(lambda: work.profile(job_of_program(args)))
    try:
        ScriptRun(args.script, attempt, work.take, work.fail, work.start_again).run(
            script_arguments, args.module
        )
    except (ProfileError, KeyboardInterrupt) as error:
        work.fail(error)


def main(argv: list[str]) -> int:
    ours, script_arguments = split_arguments(argv)
    args = arguments_of(ours)
    if args.local_rank is not None:
        # Equal to the LOCAL_RANK to come.
        script_arguments = [f"--local_rank={device_of_this_process().place.index or 0}", *script_arguments]
    try:
        with interrupted_by_sigterm():  # else processes that measure beside this one would go on
            return run(args, argv, script_arguments)
    except (ProfileError, _profiler.InputError) as error:
        return fail("profile", ours, getattr(error, "status", Status.BAD_INPUT), str(error))
    except KeyboardInterrupt:
        return fail("profile", ours, Status.INTERRUPTED, "interrupted, nothing was written")
