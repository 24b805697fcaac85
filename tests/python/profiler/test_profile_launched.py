# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile` under a launcher: transfers between its ranks, and each kind of device by its own rank."""

import json
import subprocess
from pathlib import Path

import ostinato.profile
import profile_scripts
import pytest
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.launched import ALONE, WaitingRanks, file_of_kind, world
from support.launched import TIMEOUT, environment, torchrun
from support.started import launched
from support.tiers import everyday
from torch.distributed import TCPStore

PROFILE = Path(ostinato.profile.__file__).with_name("__main__.py")
QUICK = ["--repeats", "1", "--warm-up", "0"]


def arguments(tmp_path, *options):
    train, config = profile_scripts.write(tmp_path)
    script = ["--", "--width", "16", "--deepspeed_config", str(config)]
    return [str(train), "-o", str(tmp_path / "profile.json"), *QUICK, *options, *script]


@pytest.mark.slow  # test_layers_that_are_sliced_over_ranks_are_measured_with_their_collectives has transfers between its ranks
def test_torchrun_measures_between_its_ranks(tmp_path):
    command = torchrun(3, "-m", "ostinato.profile", *arguments(tmp_path))
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment())
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "profile.json").read_text())
    pairs = {(row["from"], row["to"]) for row in written["transfers"]}
    assert pairs == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert len(written["layers"]) == 4 and written["completeness"]["complete"]
    assert result.stdout.count("wrote ") == 1  # one rank profiles


def test_ranks_that_wait_end_with_the_one_that_profiles(tmp_path):
    """They answer the launcher's SIGTERM, which would kill them 30 s later."""
    (tmp_path / "train.py").write_text("import os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)\n")
    command = torchrun(2, "-m", "ostinato.profile", "train.py", "--no-transfers")
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, env=environment()
    )
    assert result.returncode == 1
    assert "ostinato profile: interrupted, nothing was written" in result.stderr
    assert "Unable to shutdown process" not in result.stderr


def test_ranks_that_wait_end_with_the_launcher():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    waiting = WaitingRanks(TCPStore("127.0.0.1", server.port, is_master=False))
    del server
    with pytest.raises(ProfileError, match="the launcher is gone, so this rank ends"):
        waiting.told()
    waiting.tell(ALONE)


def test_each_kind_of_device_is_profiled_by_its_first_rank(tmp_path):
    (tmp_path / "of_kinds.py").write_text(
        "import os, runpy\n\n"
        'os.environ["OSTINATO_DEVICE_KIND"] = ("A100", "H200", "A100")[int(os.environ["RANK"])]\n'
        'runpy.run_module("ostinato.profile", run_name="__main__")\n'
    )
    run = launched(tmp_path / "of_kinds.py", arguments(tmp_path, "--no-transfers"), tmp_path, ranks=3)
    assert run.status == [0, 0, 0], run.said
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("profile*.json")}
    assert {name: profile["device"]["kind"] for name, profile in files.items()} == {
        "profile.a100.json": "A100", "profile.h200.json": "H200"}  # fmt: skip
    assert run.said.count("wrote ") == 2  # the second A100 had nothing to add


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "MASTER_ADDR": "node0"}, (1, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a shell inside an allocation, not a launch
    ],
)
def test_who_launched(monkeypatch, variables, expected):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert world() == expected


def test_file_names_of_kinds():
    assert file_of_kind(Path("out/p.json"), "cpu", ["cpu"]) == Path("out/p.json")
    assert file_of_kind(Path("out/p.json"), "NVIDIA H200", ["NVIDIA H200", "cpu"]) == Path(
        "out/p.nvidia-h200.json"
    )


SLICED = f"""
import os
import sys
import time

sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from types import SimpleNamespace

import deepspeed
import torch
from deepspeed.ops import __compatible_ops__
from deepspeed.pipe import PipelineModule
from support import sliced_model

__compatible_ops__["deepspeed_shm_comm"] = False
torch.set_num_threads(1)
deepspeed.init_distributed("gloo", verbose=False)
whole = sliced_model.summed


def summed(part):
    time.sleep(0.002 * sliced_model.here.index)  # slice 1 is late for every collective
    return whole(part)


sliced_model.summed = summed
made, shape = sliced_model.Sliced(), SimpleNamespace(stages=int(os.environ["STAGES"]), slices=2)
layers, topology = made.layers_of(shape), sliced_model.topology_of(shape)
model = PipelineModule(layers, topology=topology, loss_fn=made.loss, partition_method="uniform")
config = {{
    "train_micro_batch_size_per_gpu": sliced_model.BATCH,
    "gradient_accumulation_steps": 4,
    "optimizer": {{"type": "SGD", "params": {{"lr": 0.05}}}},
    "zero_allow_untested_optimizer": True,
    "ostinato": {{"auto": True, "output": "never"}},  # profiling does not heed it
}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
engine.train_batch(made.micro_batches(0))
print("trained on")
"""


def of_sliced(folder, stages: int, *options: str, ranks: int = 1) -> str:
    """What `ostinato profile` of it prints, started as by torchrun, which holds the ranks' store."""
    (folder / "train.py").write_text(SLICED)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        "MASTER_PORT": str(store.port),
        "STAGES": str(stages),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    run = launched(PROFILE, ["train.py", *options, *QUICK], folder, environment=variables, ranks=ranks)
    assert run.status == [0] * ranks, run.said
    return run.said


@pytest.mark.parametrize("stages", everyday([1, 2], 1))
def test_layers_that_are_sliced_over_ranks_are_measured_with_their_collectives(tmp_path, stages):
    ranks = 2 * stages
    said = of_sliced(tmp_path, stages, "--html", "page.html", ranks=ranks)
    assert "in DeepSpeed's engine, where --repeats and --warm-up have no effect\n" in said
    assert "trained on" not in said and said.count("wrote ") == 2
    assert not (tmp_path / "never").exists() and (tmp_path / "page.html").stat().st_size
    written = json.loads((tmp_path / "profile.json").read_text())
    assert (written["model"]["name"], written["slices"]) == ("train", 2)
    assert len(written["transfers"]) == ranks * (ranks - 1)
    blocks = [row for row in written["layers"] if "Block" in row["name"]]
    assert len(blocks) == 4
    for row in blocks:  # two collectives each way, each 2 ms late
        assert row["forward"]["median"] > 4e6 and row["backward"]["median"] > 4e6


def test_sliced_layers_without_their_ranks_are_measured_with_a_word_about_it(tmp_path):
    said = of_sliced(tmp_path, 2, "--world-size", "4")
    assert "torchrun with 4 ranks and -m ostinato profile measures them" in said
