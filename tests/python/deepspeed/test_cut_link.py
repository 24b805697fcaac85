# SPDX-License-Identifier: Apache-2.0
"""A link between two hosts that is cut in the middle of a training: both ranks say for whom they wait, and
end. One that is slow and loses packets is waited for. Hosts are network namespaces of one machine, which
takes root and iproute2; losing packets takes nftables.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import worlds
from support.fault_jobs import BOUND_S, finish, losses_of, said_by, start_bare, wait_for
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES

NAMES = [f"ostinato-{os.getpid()}-{host}" for host in range(2)]
LINKS = [f"ost{os.getpid()}.{host}" for host in range(2)]


def run(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


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
            run(
                "link",
                "add",
                LINKS[0],
                "netns",
                NAMES[0],
                "type",
                "veth",
                "peer",
                "name",
                LINKS[1],
                "netns",
                NAMES[1],
            )
            for host, (name, link) in enumerate(zip(NAMES, LINKS, strict=True)):
                run("-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", link)
                run("-n", name, "link", "set", link, "up")
                run("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield


def start(plan: Path, folder: Path, rank: int) -> subprocess.Popen:
    """A rank in the namespace of its number; rank 0 holds the store."""
    words = [
        "ip",
        "netns",
        "exec",
        NAMES[rank],
        sys.executable,
        "-m",
        "support.fault_jobs",
        str(plan),
        str(folder),
    ]
    environment = (
        os.environ
        | worlds.environment(rank, 2, 29500)
        | {"MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": LINKS[rank]}
    )
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)


def plan_in(folder: Path) -> Path:
    return make_plan(folder / "plan", Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES)


def begin(folder: Path) -> list[subprocess.Popen]:
    plan = plan_in(folder)
    return [start(plan, folder, rank) for rank in range(2)]


def test_both_ranks_end_and_name_each_other(hosts, tmp_path):
    ranks = begin(tmp_path)
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


def inside(host: int, *words: str) -> str:
    return run("netns", "exec", NAMES[host], *words)


def make_slow(host: int) -> None:
    """Of what a host sends, 64 kbit a second get through; a step sends 2 kB."""
    inside(host, *f"tc qdisc add dev {LINKS[host]} root tbf rate 64kbit burst 1600 limit 3000".split())


def make_lossy(host: int) -> None:
    """Every fiftieth packet that comes to a host, at random, is lost."""
    inside(host, "nft", "add table inet lossy")
    inside(host, "nft", "add chain inet lossy coming { type filter hook input priority 0; }")
    inside(host, "nft", "add rule inet lossy coming numgen random mod 50 == 0 counter drop")


def delayed(host: int) -> int:
    """Packets that had to wait for the rate."""
    (queue,) = json.loads(inside(host, "tc", "-s", "-j", "qdisc", "show", "dev", LINKS[host]))
    return queue["overlimits"]


def lost(host: int) -> int:
    return int(re.search(r"counter packets (\d+)", inside(host, "nft", "list", "ruleset"))[1])


HARMS = {"slow": ("tc", make_slow, delayed), "lossy": ("nft", make_lossy, lost)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start_bare(plan_in(folder), folder)) == [0, 0], said_by(folder, 0)
    return losses_of(folder, 0)


@pytest.mark.slow  # test_deepspeed_stopped.py waits for a late rank
@pytest.mark.parametrize("harm", HARMS)
def test_a_bad_link_is_waited_for(hosts, undisturbed, tmp_path, harm):
    tool, make, harmed = HARMS[harm]
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    for host in range(2):
        make(host)
    ranks = begin(tmp_path)
    try:
        statuses = [process.wait(BOUND_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    print(f"{harm}: {[harmed(host) for host in range(2)]} packets")
    assert statuses == [0, 0], said_by(tmp_path, 0) + said_by(tmp_path, 1)
    assert all(harmed(host) > 0 for host in range(2))
    assert losses_of(tmp_path, 0) == undisturbed == losses_of(tmp_path, 1)
