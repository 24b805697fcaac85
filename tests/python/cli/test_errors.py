# SPDX-License-Identifier: Apache-2.0
"""One table of exit statuses, and one root of what is raised."""

import importlib
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ostinato.errors import Error, Status, interrupted_by_sigterm, printable, put

HEADER = Path(__file__).parents[3] / "search" / "files" / "error.h"
RAISED = [
    ("ostinato.deepspeed.errors", "OstinatoError"),
    ("ostinato.deepspeed.errors", "Unsupported"),
    ("ostinato.profile.errors", "ProfileError"),
    ("ostinato.nn.layers", "ShardingError"),
    ("ostinato.torch.batches", "BatchError"),
    ("ostinato.torch.checks", "PipelineError"),
    ("ostinato.trace", "TraceError"),
]


def test_statuses_are_those_of_the_commands_in_cpp():
    table = re.search(r"enum class ExitStatus : int \{(.*?)\n\};", HEADER.read_text(), re.DOTALL)[1]
    assert {name: int(number) for name, number in re.findall(r"(\w+) = (\d+),", table)} == {
        s.name.lower(): s.value for s in Status
    }


def test_control_characters_are_written_out():
    assert printable("a\x1b[31m\tb\n\x9b\u202e é") == "a\\u001b[31m\\tb\\n\\u009b\\u202e é"
    assert printable("a\nb\r", newlines=True) == "a\nb\\u000d"


def test_no_line_is_worth_a_run(monkeypatch, tmp_path):
    written: list[str] = []
    closed = (tmp_path / "closed").open("w")
    closed.close()
    for stream in (SimpleNamespace(write=written.append), closed, None, open("/dev/full", "w")):
        monkeypatch.setattr(sys, "stdout", stream)
        put("ostinato: a line")
        monkeypatch.setattr(sys, "stderr", stream)
        put("ostinato: another line", error=True)
    assert written == ["ostinato: a line\n", "ostinato: another line\n"]


@pytest.mark.parametrize(("module", "name"), RAISED)
def test_everything_raised_has_one_root(module, name):
    assert issubclass(getattr(importlib.import_module(module), name), Error)


def test_sigterm_is_ctrl_c_but_not_for_forked_processes():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        if (child := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
