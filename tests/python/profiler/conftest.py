# SPDX-License-Identifier: Apache-2.0

import pytest
from ostinato.profile.machine.device import Cpu
from ostinato.profile.script import first_step

OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def script_alone(monkeypatch):
    """For a script that runs in this process: the environment as it was, and no process group left behind."""
    for name in (*OF_LAUNCHERS, "DS_ACCELERATOR", "WANDB_MODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(first_step, "device_of_this_process", Cpu)
    yield
    first_step.forget_processes()
