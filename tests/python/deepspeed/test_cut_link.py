# SPDX-License-Identifier: Apache-2.0
"""A link between two hosts that is cut in the middle of a training: both ranks say for whom they wait, and end. Hosts are network namespaces
of one machine, which takes root and iproute2.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import worlds
from support.fault_jobs import BOUND_S, losses_of, said_by, wait_for
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES

NAMES = [f"ostinato-{os.getpid()}-{host}" for host in range(2)]
LINKS = [f"ost{os.getpid()}.{host}" for host in range(2)]


def run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two of them, with a link between them: 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    with contextlib.ExitStack() as made:
        try:
            for name in NAMES:
                run("netns", "add", name)
                made.callback(run, "netns", "del", name)
            run("link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1])
            for host, (name, link) in enumerate(zip(NAMES, LINKS, strict=True)):
                run("-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", link)
                run("-n", name, "link", "set", link, "up")
                run("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield


def start(plan: Path, folder: Path, rank: int) -> subprocess.Popen:
    """A rank in the namespace of its number; rank 0 holds the store."""
    words = ["ip", "netns", "exec", NAMES[rank], sys.executable, "-m", "support.fault_jobs", str(plan), str(folder)]
    environment = os.environ | worlds.environment(rank, 2, 29500) | {"MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": LINKS[rank]}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)


def test_both_ranks_end_and_name_each_other(hosts, tmp_path):
    plan = make_plan(tmp_path / "plan", Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)
    ranks = [start(plan, tmp_path, rank) for rank in range(2)]
    try:
        assert wait_for(lambda: len(losses_of(tmp_path, 0)) >= 2), said_by(tmp_path, 0) + said_by(tmp_path, 1)
        run("-n", NAMES[0], "link", "set", LINKS[0], "down")
        assert [process.wait(BOUND_S) != 0 for process in ranks] == [True, True]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for rank in range(2):
        assert f"rank {1 - rank}" in said_by(tmp_path, rank), said_by(tmp_path, rank)[-2000:]
    assert "the store does not answer" in said_by(tmp_path, 1), said_by(tmp_path, 1)[-2000:]
