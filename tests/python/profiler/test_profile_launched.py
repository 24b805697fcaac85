# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile` under a launcher: transfers between its ranks, and each kind of device by its own rank."""

import json
import subprocess
from pathlib import Path

import profile_scripts
import pytest
from ostinato.profile.errors import ProfileError
from ostinato.profile.machine.launched import ALONE, WaitingRanks, file_of_kind, world
from support.launched import TIMEOUT, environment, torchrun
from support.started import launched
from torch.distributed import TCPStore

QUICK = ["--repeats", "1", "--warm-up", "0"]
# `ostinato profile` on a rank, with its standard output in a file.
PROFILE = """
import os
import runpy

rank = int(os.environ["RANK"])
os.dup2(os.open(f"output.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
if "KINDS" in os.environ:
    os.environ["OSTINATO_DEVICE_KIND"] = os.environ["KINDS"].split()[rank]
runpy.run_module("ostinato.profile", run_name="__main__")
"""


def arguments(tmp_path, *options):
    train, config = profile_scripts.write(tmp_path)
    script = ["--", "--width", "16", "--deepspeed_config", str(config)]
    return [str(train), "-o", str(tmp_path / "profile.json"), *QUICK, *options, *script]


def profiled(folder, words: list[str], ranks: int, **environment: str) -> tuple[list[str], str]:
    """What each rank prints, and what all of them say on standard error."""
    (folder / "on_a_rank.py").write_text(PROFILE)
    run = launched(folder / "on_a_rank.py", words, folder, environment=environment, ranks=ranks)
    assert run.status == [0] * ranks, run.said
    return [(folder / f"output.{rank}").read_text() for rank in range(ranks)], run.said


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
    words = arguments(tmp_path, "--no-transfers")
    printed, _ = profiled(tmp_path, words, ranks=3, KINDS="A100 H200 A100")
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("profile*.json")}
    assert {name: profile["device"]["kind"] for name, profile in files.items()} == {
        "profile.a100.json": "A100", "profile.h200.json": "H200"}  # fmt: skip
    assert printed[2] == ""  # the second A100 had nothing to add


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
    time.sleep(0.005 * sliced_model.here.index)  # slice 1 is late for every collective
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


def check_sliced(folder, ranks: int, printed: str, said: str) -> None:
    assert "in DeepSpeed's engine, where --repeats and --warm-up have no effect\n" in said
    assert "trained on" not in printed + said and printed.count("wrote ") == 2
    assert not (folder / "never").exists() and (folder / "page.html").stat().st_size
    written = json.loads((folder / "profile.json").read_text())
    assert (written["model"]["name"], written["slices"]) == ("train", 2)
    assert len(written["transfers"]) == ranks * (ranks - 1)
    blocks = [row for row in written["layers"] if "Block" in row["name"]]
    assert len(blocks) == 4
    for row in blocks:  # two collectives each way
        assert row["forward"]["median"] > 10e6 and row["backward"]["median"] > 10e6


def test_layers_that_are_sliced_over_ranks_are_measured_with_their_collectives(tmp_path):
    (tmp_path / "train.py").write_text(SLICED)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    as_of_torchrun = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    printed, said = profiled(
        tmp_path,
        ["train.py", "--html", "page.html", *QUICK],
        ranks=2,
        STAGES="1",
        MASTER_PORT=str(store.port),
        **as_of_torchrun,
    )
    check_sliced(tmp_path, 2, "".join(printed), said)


@pytest.mark.slow  # test_layers_that_are_sliced_over_ranks_are_measured_with_their_collectives has one stage of them
def test_torchrun_measures_sliced_layers_of_two_stages(tmp_path):
    (tmp_path / "train.py").write_text(SLICED)
    command = torchrun(4, "-m", "ostinato.profile", "train.py", "--html", "page.html", *QUICK)
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, env=environment(STAGES="2")
    )
    assert result.returncode == 0, result.stderr
    check_sliced(tmp_path, 4, result.stdout, result.stderr)


def test_sliced_layers_without_their_ranks_are_measured_with_a_word_about_it(tmp_path):
    (tmp_path / "train.py").write_text(SLICED)
    _, said = profiled(tmp_path, ["train.py", "--world-size", "4", *QUICK], ranks=1, STAGES="2")
    assert "torchrun with 4 ranks and -m ostinato profile measures them" in said
