# SPDX-License-Identifier: Apache-2.0
"""Layers are measured while other cores compute, as in a training."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato import _profiler
from ostinato.profile import ProfileError
from ostinato.profile.command import Work
from ostinato.profile.options import parser
from ostinato.profile.machine.launched import Role
from ostinato.profile.measure.neighbours import busy_neighbours, most_beside
from ostinato.profile.model.job import Job
from ostinato.profile.run import profile_layers
from ostinato.profile.script.first_step import Attempt

MOST_WAIT = 60  # seconds; a copy that works needs none


class Counted(nn.Module):
    """Says in which process it ran, and raises in those of `fails`."""

    def __init__(self):
        super().__init__()
        self.linear, self.runs, self.measured = nn.Linear(4, 4), multiprocessing.Value("i", 0), os.getpid()
        self.fails = multiprocessing.Value("b", False)

    def forward(self, x):
        if os.getpid() != self.measured:
            if self.fails.value:
                raise ValueError("not beside others")
            with self.runs.get_lock():
                self.runs.value += 1
        return self.linear(x)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def layers_of(module):
    from ostinato.profile.model.build import build_chain
    from ostinato.profile.settings import read_settings

    return build_chain(Job(layers=[module], inputs=torch.ones(2, 4)), read_settings({}, None)).layers


def wait_until(condition):
    end = time.monotonic() + MOST_WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def children():
    """Of this thread."""
    task = threading.get_native_id()
    return [int(child) for child in Path(f"/proc/self/task/{task}/children").read_text().split()]


def has_ended(process):
    """Waited for or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("count", [1, 2])
def test_others_compute_while_it_lasts_and_not_after(count, threads):
    """Also where OpenMP's threads are there before the fork: no copy waits for them."""
    torch.set_num_threads(count)
    torch.ones(512, 512) @ torch.ones(512, 512)
    module = Counted()
    layers = layers_of(module)
    with busy_neighbours(layers, 1):
        wait_until(lambda: module.runs.value > 3)
    runs = module.runs.value
    with busy_neighbours(layers, 0):
        assert module.runs.value == runs


def test_one_that_ends_early_is_said(capfd, threads):
    torch.set_num_threads(1)
    module = Counted()
    layers = layers_of(module)
    module.fails.value = True
    before = children()
    with (
        pytest.raises(
            ProfileError, match=r"1 of 1 process that computed at the same time ended early: use --beside 0"
        ),
        busy_neighbours(layers, 1),
    ):
        copy = (set(children()) - set(before)).pop()
        wait_until(lambda: has_ended(copy))
    assert "a process that computes at the same time: ProfileError: layer" in capfd.readouterr().err


def test_a_profile_says_who_computed_beside(threads):
    torch.set_num_threads(1)
    profile = profile_layers(
        Job(layers=[nn.Linear(4, 4)], inputs=torch.ones(2, 4), repeats=2, warm_up=1, beside=1)
    )
    assert profile.timer_note.startswith("1 process computed at the same time, as other ranks do")
    alone = profile_layers(Job(layers=[nn.Linear(4, 4)], inputs=torch.ones(2, 4), repeats=2, warm_up=1))
    assert "at the same time" not in alone.timer_note


def test_as_many_as_have_cores(monkeypatch, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    torch.set_num_threads(1)
    assert [most_beside(ranks) for ranks in (1, 2, 8, 64)] == [0, 1, 7, 7]
    torch.set_num_threads(4)
    assert [most_beside(ranks) for ranks in (1, 2, 8)] == [0, 1, 1]


def work(monkeypatch, *arguments, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Work(parser().parse_args(["train.py", *arguments]), [], [], Role(True, ["cpu"]), None)


def test_options_that_the_engine_does_not_heed_are_named(monkeypatch):
    assert work(monkeypatch, "--repeats", "20", "--no-transfers").unheeded() == ""
    assert work(monkeypatch, "--beside", "0").unheeded() == ", where --beside has no effect"


def test_quiet_leaves_out_that_the_script_starts_again(monkeypatch, capsys, tmp_path):
    def executed(*_):
        raise SystemExit

    monkeypatch.setattr(os, "execve", executed)
    monkeypatch.setattr(multiprocessing, "active_children", list)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for quiet in (True, False):
        with pytest.raises(SystemExit):
            work(monkeypatch, *["--quiet"] * quiet).start_again(Attempt(4))
        assert ("starting the script again" in capsys.readouterr().err) != quiet


def test_the_world_of_the_script_or_of_the_launcher_decides(monkeypatch, threads):
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    job = Job(config={"train_batch_size": 1}, ranks=4)
    assert work(monkeypatch).beside(job) == 3
    assert work(monkeypatch, "--beside", "1").beside(job) == 1
    assert work(monkeypatch).beside(Job(ranks=4)) == 0  # an archive is not trained here
    assert work(monkeypatch, LOCAL_WORLD_SIZE="2").beside(job) == 1  # of several hosts


def test_an_accelerator_has_no_busy_neighbours(monkeypatch):
    job = Job(config={"train_batch_size": 1}, ranks=4, device=SimpleNamespace(place="cuda:0"))
    assert work(monkeypatch).beside(job) == 0
    with pytest.raises(ProfileError, match="--beside is for CPUs, but this rank computes on cuda:0"):
        work(monkeypatch, "--beside", "2").beside(job)


def test_none_is_left_when_the_profiler_is_killed(tmp_path):
    script = tmp_path / "beside.py"
    script.write_text(
        "import os, time, torch\n"
        "from torch import nn\n"
        "from ostinato.profile.measure.neighbours import busy_neighbours\n"
        "from ostinato.profile.model.build import build_chain\n"
        "from ostinato.profile.model.job import Job\n"
        "from ostinato.profile.settings import read_settings\n"
        "torch.set_num_threads(1)\n"
        "layers = build_chain(Job(layers=[nn.Linear(4, 4)], inputs=torch.ones(2, 4)), read_settings({}, None)).layers\n"
        "with busy_neighbours(layers, 1):\n"
        "    children = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        "    print(*children, flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline().split()[0])
    process.kill()
    process.wait()
    wait_until(lambda: has_ended(child))


def test_the_profile_keeps_the_note(tmp_path):
    profile = _profiler.Profile()
    profile.timer, profile.timer_note = "cpu", "1 process computed at the same time, as other ranks do"
    assert profile.timer_note in profile.json()


def test_a_profile_says_how_much_of_a_layer_computes(threads):
    """A layer that sleeps wants no core, and one that computes does, on a busy machine, too."""
    torch.set_num_threads(1)

    def share(layer):
        job = Job(layers=[layer], inputs=torch.ones(64, 256), repeats=3, warm_up=1)
        return profile_layers(job).rank.computing / 1e6

    def sleeps(x):
        time.sleep(0.05)
        return x

    assert share(sleeps) < 0.5 < share(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
