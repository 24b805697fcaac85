# SPDX-License-Identifier: Apache-2.0
"""A training script under every launcher of a node: the same losses, and the plan runs in each."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options
from support.worlds import free_port, without_launcher

from ostinato import slurm

SCRIPT = """
import argparse, sys
import deepspeed
import torch
from deepspeed.ops import __compatible_ops__
from support.training import Options, data_of, make_engine

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
arguments = parser.parse_args()
torch.set_num_threads(1)
__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
engine = make_engine(Options(stages=2), arguments.deepspeed_config)
data = data_of(engine)
losses = [engine.train_batch(data).item() for _ in range(3)]
if torch.distributed.get_rank() == 0:
    print("losses", losses, flush=True)
"""
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("launch")
    make_plan(made, LOOPED, LAYERS, MICRO_BATCHES)
    (made / "train.py").write_text(SCRIPT)
    (made / "ds_config.json").write_text(json.dumps(Options(section={"plan": "plan.json"}).configuration()))
    return made


TRAIN = ["train.py", "--deepspeed_config", "ds_config.json"]
LAUNCHERS = {
    "torchrun": [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "ostinato.run",
        *TRAIN,
    ],
    "deepspeed": [
        "deepspeed.launcher.runner",
        "--num_gpus",
        "2",
        "--master_port",
        "PORT",
        "--module",
        "ostinato.run",
        *TRAIN,
    ],
}


def ran(folder: Path, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", *(str(free_port()) if word == "PORT" else word for word in words)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(words, cwd=folder, env=without_launcher() | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"} | variables,
                          capture_output=True, text=True, timeout=900)  # fmt: skip


def run(folder: Path, words: list[str], variables: dict[str, str]) -> str:
    done = ran(folder, words, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses_in(said: str) -> str:
    assert "ostinato: plan " in said, said
    return re.search(r"losses (\[.*?\])", said)[1]


@pytest.fixture(scope="module")
def of_deepspeed(folder):
    """Under its own launcher."""
    return losses_in(run(folder, LAUNCHERS["deepspeed"], {}))


@pytest.mark.slow  # test_two_nodes has torchrun
def test_torchrun(folder, of_deepspeed):
    assert losses_in(run(folder, LAUNCHERS["torchrun"], {})) == of_deepspeed


def srun(folder, words: list[str]) -> list[subprocess.CompletedProcess]:
    """With what srun sets for two tasks on this machine."""
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": str(free_port() - 20000),
        "SLURM_STEP_NODELIST": "localhost",
    }
    step |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    tasks = [step | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda task: ran(folder, words, task), tasks))


def test_srun(folder, of_deepspeed):
    """No agent of a launcher holds the store there, and no rank complains that it is gone at the end."""
    ended = srun(folder, ["ostinato.run", *TRAIN])
    assert [done.returncode for done in ended] == [0, 0], ended
    assert losses_in(ended[0].stdout) == of_deepspeed
    assert not [done.stderr for done in ended if "store" in done.stderr.lower()]


def test_a_refusal_is_said_once_and_last(folder, tmp_path):
    shutil.copy(folder / "train.py", tmp_path)
    (tmp_path / "ds_config.json").write_text(
        json.dumps(Options(section={"plan": "gone.json"}).configuration())
    )
    first, second = srun(tmp_path, ["ostinato.run", *TRAIN])
    assert (first.returncode, second.returncode) == (1, 1)
    assert re.search(r"ostinato: .*gone\.json: no such file[^\n]*\n\Z", first.stderr), first.stderr
    assert (
        "gone.json" not in second.stdout + second.stderr and "Traceback" not in first.stderr + second.stderr
    )


def test_two_nodes(folder, of_deepspeed, tmp_path):
    """One agent a node, with a rank each, and no folder that both see."""
    place = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_port()),
    ]
    nodes = [shutil.copytree(folder, tmp_path / f"node{node}") for node in range(2)]

    def agent(node: int) -> str:
        return run(
            nodes[node],
            ["torch.distributed.run", *place, "--node-rank", str(node), "-m", "ostinato.run", *TRAIN],
            {},
        )

    with ThreadPoolExecutor() as pool:
        assert losses_in(next(pool.map(agent, range(2)))) == of_deepspeed


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[03-07,9],x", "gpu03"),
        ("a,b[1-2]", "a"),
        ("r[1,4]n2", "r1n2"),
        ("n[5]", "n5"),
        ("h-1,h-2", "h-1"),
        ("rack[0-1]node[03-12,20],x", "rack0node03"),
        ("r[2,4]n[7]-ib,x", "r2n7-ib"),
    ],
)
def test_first_node(nodes, first):
    assert slurm.first_node(nodes) == first


def test_tasks_of_node():
    assert [slurm.tasks_of_node("4(x2),3", node) for node in range(3)] == ["4", "4", "3"]


def test_only_a_job_step_counts():
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "12345"}
    assert slurm.variables(step)["RANK"] == "3" and slurm.variables(step)["MASTER_PORT"] == "22345"
    assert slurm.variables({**step, "RANK": "1"}) == {}
    assert slurm.variables({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == {}
    assert "MASTER_ADDR" not in slurm.variables({**step, "MASTER_ADDR": "10.0.0.1"})
