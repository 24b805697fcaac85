# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_again.py run: a script that does what a training script may do, replaces itself, and
writes down what each of its two starts has found, in FOLDER/RANK-START.json. It takes both folders relative
to where it is started.

    torchrun --nproc-per-node 2 second_start.py FOLDER [RANK THAT IS LATE] [PORT THAT IT SETS]
"""

import atexit
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from logging.handlers import MemoryHandler
from pathlib import Path

import torch
import torch.distributed as dist
from ostinato.ranks import again
from ostinato.ranks import arrivals
from torch.utils.data import DataLoader

INHERITED = 77  # a descriptor that the first start leaves open for programs that it starts


def main(folder: str, late: str = "", port: str = "") -> None:
    into = Path(folder).resolve()
    found = again.folder_of_first_start()
    if found is not None:
        _come_back(into, late)
    os.environ["MASTER_PORT"] = port or os.environ["MASTER_PORT"]
    dist.init_process_group("gloo")
    rank, number = dist.get_rank(), 1 if found is None else 2
    total = torch.full([1], rank + 1.0)
    dist.all_reduce(total)
    seen = {
        "pid": os.getpid(),
        "argv": sys.argv,
        "folder": os.getcwd(),
        "sum": total.item(),
        "why": again.why_not_again(),
        "at": time.time(),
    }
    os.environ["OSTINATO_TESTED"] = seen["variable"] = os.environ.get("OSTINATO_TESTED", "") + "x"
    seen["port"], seen["inherited"] = os.environ["MASTER_PORT"], os.path.exists(f"/proc/self/fd/{INHERITED}")
    if found is None:
        seen["children"] = _leave_things(into, rank)
    else:
        seen |= {
            "left": {file.name: file.read_text() for file in found.iterdir()},
            "mode": found.stat().st_mode & 0o777,
            "where": str(found),
        }
    (into / f"{rank}-{number}.json").write_text(json.dumps(seen))
    atexit.register((into / f"{rank}-{number}.ended").touch)
    try:
        again.begin_again({"plan.json": f"plan of rank {rank}", "began": str(time.time())}, timeout_s=60)
    except again.CannotStartAgain as error:
        (into / f"{rank}-{number}.refused").write_text(str(error))
    dist.destroy_process_group()


def _come_back(into: Path, late: str) -> None:
    """Rank `late` only once rank 0 waits for it in vain."""
    arrivals.PATIENCE_S = 1.0
    arrivals.name_absent()
    waits = into / "rank 0 waits"
    if os.environ["RANK"] == "0":
        waits.touch()
    while os.environ["RANK"] == late and not (waits.exists() and time.time() > waits.stat().st_mtime + 4):
        time.sleep(0.1)


_loaders = []  # with workers that live as long as the script


def _leave_things(into: Path, rank: int) -> list[int]:
    """Processes, files, an alarm, another folder: what the second start is to find gone. The numbers of the
    processes."""
    loader = DataLoader(list(range(8)), num_workers=1, persistent_workers=True)
    _loaders.append(iter(loader))
    next(_loaders[0])
    again.PATIENCE_S = 0.5
    stubborn = multiprocessing.get_context("fork").Process(target=_never_ends)
    stubborn.start()
    _loaders.append((into / f"{rank}.events").open("w"))
    _loaders[-1].write("of a writer that was not flushed")
    handler = MemoryHandler(1000, target=logging.FileHandler(into / f"{rank}.log"))
    handler.setLevel("WARNING")
    logging.getLogger().addHandler(handler)
    logging.warning("kept until then")
    print(f"rank {rank} has said this", end="")
    os.dup2(os.open(os.devnull, os.O_RDONLY), INHERITED, inheritable=True)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    os.chdir(into)
    return [child.pid for child in multiprocessing.active_children()]


def _never_ends() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
