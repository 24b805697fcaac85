# SPDX-License-Identifier: Apache-2.0
"""Nodes come and go under torchrun's elastic agents, one rank each on this machine: training goes on with a
plan for the ranks that are there, from the last checkpoint.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import worlds

from .test_clients import AUTO, BATCHES, OPTIMIZER, WAYS

TIMEOUT = 180  # seconds, for each change of the ranks


class Job:
    """Its agents meet, and its ranks write, in one folder."""

    def __init__(self, folder: Path, section: dict | None):
        self.folder, self._port = folder, worlds.free_port()
        folder.mkdir()
        configuration = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": BATCHES,
            "gradient_clipping": 0.0,  # DeepSpeed's norm depends on the number of stages
            "optimizer": OPTIMIZER,
        } | ({} if section is None else {"ostinato": section})
        (folder / "ds.json").write_text(json.dumps(configuration))

    @contextmanager
    def node(self, least: int, most: int):
        """One more agent, with its rank."""
        words = ["--nnodes", f"{least}:{most}", "--nproc-per-node", "1", "--max-restarts", "2"]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        words += ["--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"]
        words += ["--monitor-interval", "0.3", "--local-addr", "127.0.0.1", str(WAYS / "comes_and_goes.py")]
        words += ["--deepspeed_config", "ds.json", "--results", "unused", "--folder", str(self.folder)]
        environment = worlds.without_launcher() | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "GLOO_SOCKET_IFNAME": "lo",
            "DS_ACCELERATOR": "cpu",
            "TMPDIR": str(self.folder),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else ranks read addresses of those before them
        }
        with open(self.folder / "printed", "a") as printed:
            agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
            )
        try:
            yield agent
        finally:
            lose(agent)

    @property
    def said(self) -> str:
        return (self.folder / "printed").read_text()

    def losses(self) -> list[tuple[int, int, str]]:
        """Step, number of ranks and loss, in the order in which they were trained."""
        file = self.folder / "losses"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(step), int(ranks), loss) for step, ranks, loss in map(str.split, lines)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        limit = time.time() + TIMEOUT
        while not condition():
            assert time.time() < limit, self.said[-4000:]
            time.sleep(0.2)

    def wait_for_steps(self, ranks: int, steps: int) -> None:
        """Until so many steps were trained on so many ranks since their number changed."""

        def trained() -> bool:
            last = [of for _, of, _ in self.losses()][-steps:]
            return last == [ranks] * steps

        self.wait_for(trained)

    def end(self, agents: list[subprocess.Popen]) -> None:
        (self.folder / "enough").touch()
        self.wait_for(lambda: all(agent.poll() is not None for agent in agents))
        assert [agent.returncode for agent in agents] == [0] * len(agents), self.said[-4000:]


def lose(agent: subprocess.Popen) -> None:
    """As when its machine fails: the rank, which has a session of its own, as well."""
    ranks = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
    agent.kill()
    for rank in map(int, ranks):
        try:
            os.kill(rank, signal.SIGKILL)
        except ProcessLookupError:
            pass
    agent.wait()


@pytest.mark.slow  # test_clients.py starts on ranks of one number, test_checkpoint_pairs.py loads on another
def test_a_node_is_lost_and_another_joins(tmp_path):
    alone = Job(tmp_path / "alone", None)
    with ExitStack() as nodes:
        agents = [nodes.enter_context(alone.node(4, 4)) for _ in range(4)]
        alone.wait_for_steps(4, 12)
        alone.end(agents)
    job = Job(tmp_path / "job", AUTO | {"output": str(tmp_path / "out"), "timeout_s": 60})
    with ExitStack() as nodes:
        agents = [nodes.enter_context(job.node(3, 4)) for _ in range(4)]
        job.wait_for_steps(4, 6)
        lose(agents.pop())
        job.wait_for_steps(3, 6)
        agents.append(nodes.enter_context(job.node(3, 4)))
        job.wait_for_steps(4, 6)
        job.end(agents)
    made: dict[int, set[str]] = {}
    for step, _, loss in alone.losses() + job.losses():
        made.setdefault(step, set()).add(loss)
    assert all(len(losses) == 1 for losses in made.values()), (
        "as DeepSpeed's, also of a step that was trained twice"
    )
    ranks = [of for _, of, _ in job.losses()]
    assert [of for i, of in enumerate(ranks) if i == 0 or ranks[i - 1] != of] == [4, 3, 4]
    again = (
        "is for 4 ranks and 4 micro-batches a step, not 3 ranks and 4 micro-batches a step: searching again"
    )
    assert job.said.count(again) == 1, "the plan for four is kept"
    assert (tmp_path / "out/3-ranks/plan.json").exists() and (tmp_path / "out/plan.json").exists()
