# SPDX-License-Identifier: Apache-2.0
"""`--devices launcher`: the ranks that torchrun started, as a device file."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ostinato import cli, devices
from ostinato.cli import names_launcher
from ostinato.devices import Node, Rank, device_file, nodes_of, pairs_to_measure
from support.launched import TIMEOUT, environment, torchrun


def cost(source, target, latency, bytes_per_second):
    return SimpleNamespace(source=source, target=target, latency=latency, bytes_per_second=bytes_per_second)


TWO_KINDS = [Rank("a", "H200", 100), Rank("a", "H200", 90), Rank("b", "A100", 40), Rank("c", "A100", 40)]
COSTS = [cost(0, 1, 3, 3 * 10**11), cost(0, 2, 10, 10**10), cost(2, 3, 10, 5 * 10**9)]


def test_nodes_are_ranks_in_a_row():
    assert nodes_of(TWO_KINDS) == [Node("a", "H200", 0, 2), Node("b", "A100", 2, 1), Node("c", "A100", 3, 1)]
    assert pairs_to_measure(nodes_of(TWO_KINDS)) == [(0, 1), (0, 2), (2, 3)]


def test_the_file_has_the_least_memory_and_the_slowest_link():
    file = tomllib.loads(device_file(TWO_KINDS, COSTS, Path("out/p.json")))
    assert {kind["name"]: kind["memory"] for kind in file["kinds"]} == {"H200": 90, "A100": 40}
    assert file["between"] == {"latency": 10, "bandwidth": 5.0}
    assert [(node["devices"], node.get("bandwidth")) for node in file["nodes"]] == [
        (2, 300.0),
        (1, None),
        (1, None),
    ]
    assert file["kinds"][1]["profile"].endswith("out/p.a100.json")


def test_one_kind_has_the_main_profile():
    file = tomllib.loads(device_file(TWO_KINDS[:2], COSTS[:1], Path("p.json")))
    assert "profile" not in file["kinds"][0] and "between" not in file


@pytest.mark.parametrize(("visible", "local_rank", "number"), [(1, "3", 0), (4, "3", 3), (2, "3", 1)])
def test_the_gpu_of_a_rank_is_one_that_it_sees(monkeypatch, visible, local_rank, number):
    """CUDA_VISIBLE_DEVICES may show each rank one GPU, or all of the host."""

    def properties(place):
        if place.index >= visible:
            raise AssertionError("Invalid device id")  # as torch
        return SimpleNamespace(name=f"GPU {place.index}", total_memory=80 << 30)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("OSTINATO_DEVICE_KIND", raising=False)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    rank = devices.this_rank(devices.device_of_this_process(), sharers=2)
    assert (rank.kind, rank.memory) == (f"GPU {number}", (80 << 30) * 95 // 100 // 2)


def test_without_a_launcher_it_says_how(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert devices.main(["--output", "d.toml"]) == 3
    assert "torchrun -m" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--devices", "launcher"], ["--devices=launcher"]])
def test_the_word_is_seen(words):
    assert names_launcher(["plan", "p.json", *words])
    assert not names_launcher(["plan", "launcher", "--devices", "4"])


@pytest.mark.parametrize(
    "before",
    [
        "--output plan.json --devices launcher",
        "-qo plan.json --devices launcher --split-backward",
        "-oplan.json --options= other.json --devices launcher --json",
        "--devices launcher --without=moves --placement-output plan.json --",
    ],
)
def test_the_profile_is_the_word_that_is_no_options_value(monkeypatch, before):
    given = []
    monkeypatch.setattr(devices, "describe", given.append)  # None, as on all ranks but the first
    assert cli.main(["plan", *before.split(), "of any name"]) == 0
    assert given == [Path("of any name")]


@pytest.mark.parametrize("command", [["plan"], ["partition"], ["partition", "--strategy=best"]])
def test_options_take_values_as_the_help_says(command):
    """Those of C++, which the table of options does not have, are listed in cli.FLAGS."""
    text = subprocess.run(
        [sys.executable, "-m", "ostinato", *command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = re.findall(r"^  (?:-\w,)?--([\w-]+)( +[A-Z]\S*)?(?:  | ?REQUIRED|$)", text, re.MULTILINE)
    assert len(options) > 10
    for name, value in options:
        words = list(cli.parsed(["plan", f"--{name}", "next"]))
        assert (len(words) == 1) == bool(value), name


def test_plans_for_the_ranks_of_torchrun(tmp_path):
    from support.profiles import write_profile

    profile = write_profile(tmp_path / "profile.json", [1000] * 6)
    words = ["--devices", "launcher", "--micro-batches", 4, "--json", "--output", tmp_path / "plan.json"]
    words += ["--placement-output", tmp_path / "placement.toml"]
    command = torchrun(3, "-m", "ostinato", "plan", profile, *words)
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=environment(OSTINATO_DEVICE_KIND="A100")
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["status"] == 0  # one rank plans
    placement = tomllib.loads((tmp_path / "placement.toml").read_text())
    assert [device["kind"] for device in placement["devices"]] == ["A100"] * 3
    assert all(device["memory"] > 0 for device in placement["devices"])
    # As measured in this one node.
    assert placement["link"]["latency"] > 0 and placement["link"]["bandwidth"] > 0
