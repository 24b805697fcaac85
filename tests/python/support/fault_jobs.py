# SPDX-License-Identifier: Apache-2.0
"""A training that tests do harm to: bare ranks, or under a launcher (python -m support.fault_jobs PLAN FOLDER
[HARM]).

Each rank leaves in its folder what it prints (0.err), its losses (0.losses), its process (0.pid), and marks:
0.starting once it makes its engine, 0.saving while it saves, 0.done when it has trained. What goes wrong
inside a rank is a Harm; signals come from outside.
"""

import atexit
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from . import training, worlds
from .harms import CUTS, NO_HARM, Harm, Suffering
from .models import LAYERS
from .plans import Layout, make_plan
from .training import MICRO_BATCHES, Options, make_engine

STEPS, SAVED_EVERY = 20, 4
BOUND_S = 90  # for a machine on which much else runs; alone it takes TIMEOUT_S and six seconds
WHOLE_S = 900  # to begin a training, or for all of it
SIGNALS = (signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV)


def options_of(plan: Path | None, folder: Path, harm: Harm) -> Options:
    """`plan`: None for DeepSpeed alone."""
    section, config = None, {"gradient_clipping": 0.5, "zero_optimization": {"stage": 1}}
    if harm.what == "nan":  # is compared with 1F1B, where ZeRO adds up the norm in another order
        config["gradient_clipping"] = 0.0
    if plan is not None:
        section = {"plan": str(plan), "timeout_s": harm.timeout_s, "trace": str(folder / "trace")}
    return Options(section=section, config=config)


def rank_of(plan: Path | None, folder: Path, rank: int, port: int, ranks: int, harm: Harm) -> None:
    """A bare one."""
    os.environ.update(worlds.environment(rank, ranks, port))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _as_a_script(lambda: train(plan, folder, harm))


def _as_a_script(run: Callable[[], None]) -> None:
    """Ends the process as Python ends one that was started with a script; multiprocessing calls no exit
    handlers."""
    status = 0
    try:
        run()
    except BaseException as error:
        sys.last_value, status = error, 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(status)


def train(plan: Path | None, folder: Path, harm: Harm = NO_HARM) -> None:
    """From the last checkpoint, if there is one, to the last step."""
    rank = os.environ["RANK"]
    os.dup2(os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    worlds._begin()
    _mark_the_start(folder / f"{rank}.starting")
    suffers = Suffering(harm, int(rank))
    engine = make_engine(
        suffers.options(replace(options_of(plan, folder, harm), stages=training.dist.get_world_size()))
    )
    suffers.arm(engine)
    saved = folder / "saved"
    if (saved / "latest").exists():
        engine.load_checkpoint(str(saved))
    data = suffers.around(engine.batches(7))
    for _ in range(engine.global_steps * MICRO_BATCHES):
        next(data)
    with open(folder / f"{rank}.losses", "a") as losses:
        for step in range(engine.global_steps, STEPS):
            with suffers.during(step):
                losses.write(f"{step} {engine.train_batch(data).item()!r}\n")
                losses.flush()
            suffers.at("script", step)
            if (step + 1) % SAVED_EVERY == 0:
                suffers.at("checkpoint", step)
                engine.save_checkpoint(str(saved))
    (folder / f"{rank}.done").write_text("")
    training.dist.barrier()  # the script's own


def _mark_the_start(path: Path) -> None:
    from ostinato.deepspeed.start import start

    begun = start.start

    def marked(*args):
        path.write_text(str(time.monotonic()))
        begun(*args)

    start.start = marked


def wave_plan(folder: Path) -> Path:
    """Of two ranks that each wait for the other."""
    return layout_plan(folder, Layout("wave", CUTS, (0, 1, 1, 0)))


def layout_plan(folder: Path, layout: Layout) -> Path:
    return make_plan(folder, layout, LAYERS, MICRO_BATCHES)


def start_bare(plan: Path | None, folder: Path, ranks: int = 2, harm: Harm = NO_HARM) -> list:
    port = worlds.free_port()
    started = [
        worlds.forked().Process(target=rank_of, args=(plan, folder, rank, port, ranks, harm))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    return started


def start_under(
    launcher: str, plan: Path, folder: Path, ranks: int = 2, harm: Harm = NO_HARM
) -> subprocess.Popen:
    """What the launcher prints is in folder/launcher.err."""
    port, job = str(worlds.free_port()), ["support.fault_jobs", str(plan), str(folder), harm.as_text()]
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(ranks))}).encode()).decode()
    words = {
        "torchrun": [
            "torch.distributed.run",
            "--nproc-per-node",
            str(ranks),
            "--master-port",
            port,
            "--max-restarts",
            "0",
            "-m",
            *job,
        ],
        "deepspeed": [
            "deepspeed.launcher.launch",
            "--world_info",
            world,
            "--master_port",
            port,
            "--no_local_rank",
            "--module",
            *job,
        ],
    }[launcher]
    environment = worlds.without_launcher()
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    with open(folder / "launcher.err", "w") as printed:
        return subprocess.Popen(
            [sys.executable, "-m", *words], stdout=printed, stderr=printed, env=environment
        )


def losses_of(folder: Path, rank: int) -> dict[int, str]:
    """By step; what was trained twice must have had the same loss."""
    found: dict[int, str] = {}
    path = folder / f"{rank}.losses"
    for line in path.read_text().splitlines() if path.exists() else ():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"rank {rank}, step {step}"
    return found


def said_by(folder: Path, who: int | str) -> str:
    path = folder / f"{who}.err"
    return path.read_text(errors="replace") if path.exists() else ""


def wait_for(condition, seconds: float = BOUND_S) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def all_starting(folder: Path) -> bool:
    return all((folder / f"{rank}.starting").exists() for rank in range(2))


def pid_of(folder: Path, rank: int) -> int:
    return int((folder / f"{rank}.pid").read_text())


def is_running(pid: int) -> bool:
    """A process that is not just waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int, with_signal: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, with_signal)


def finish(ranks: list) -> list[int]:
    for process in ranks:
        process.join(WHOLE_S)
        process.kill()
        process.join()
    return [process.exitcode for process in ranks]


def end(ranks: list) -> None:
    for process in ranks:
        process.kill()
        process.join()


def left_behind(folder: Path, pids: list[int]) -> list[str]:
    """Files of ours with no end, and shared memory of these processes."""
    shared = [path for path in Path("/dev/shm").iterdir() if any(str(pid) in path.name for pid in pids)]
    return [str(path) for path in (*folder.rglob(".ostinato*"), *shared)]


def any_instant_of_the_start(folder: Path, random: Random, seconds: float) -> None:
    """Waits until all ranks make their engines, and then for some of the `seconds` that it takes to the end
    of the first step."""
    assert wait_for(lambda: all_starting(folder)), (
        said_by(folder, 0) + said_by(folder, 1) + said_by(folder, "launcher")
    )
    time.sleep(random.uniform(0, seconds))


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), *(Harm(**json.loads(text)) for text in sys.argv[3:]))
