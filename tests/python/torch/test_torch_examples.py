# SPDX-License-Identifier: Apache-2.0
"""docs/torch.md as somebody types it: `Pipeline`, torch's own schedule loader on our CSV, Megatron-LM's
layout."""

import re
import subprocess
import sys

import pytest
from test_docs import blocks
from test_tutorial import ROOT, missing, run

PARTS = {
    part.partition("\n")[0]: blocks(part) for part in (ROOT / "docs" / "torch.md").read_text().split("\n## ")
}
PIPELINING = ROOT / "examples" / "pipelining" / "train.py"


def shown(part: str, kind: str) -> str:
    """The first block of that kind in a part of the page."""
    return next(text for of, text in PARTS[part] if of == kind)


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+:?  ?loss (\S+)$", printed, re.M)]


@pytest.fixture(autouse=True)
def near(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.slow  # test_torch_pipeline.py has what it types
def test_a_plan_is_trained_without_deepspeed(tmp_path):
    (tmp_path / "train.py").write_text(shown("`ostinato.torch.Pipeline`", "python"))
    start = "torchrun --standalone --nproc-per-node 2 train.py"
    found = losses(run([shown("`ostinato.torch.Pipeline`", "sh"), start], tmp_path)[1])
    assert len(found) == 10 and found[-1] < found[0]


def test_torchs_own_loader_runs_our_schedule(tmp_path):
    """With the losses of one process, and with several chunks a rank and split backwards in the file."""
    printed = run([shown("torch.distributed.pipelining", "sh")], tmp_path)[0]
    assert missing(shown("torch.distributed.pipelining", "text"), printed) == "", printed
    rows = (tmp_path / "schedule.csv").read_text()
    assert "2F0" in rows and "0W0" in rows
    alone = subprocess.run(
        [sys.executable, PIPELINING], capture_output=True, text=True, timeout=300, check=True
    )
    assert losses(printed) == pytest.approx(losses(alone.stdout), abs=2e-4) and len(losses(printed)) == 5


def test_the_example_of_pipelining_imports_nothing_of_ours():
    assert not re.search(r"^\s*(from|import) ostinato", PIPELINING.read_text(), re.M)


def test_megatrons_layout_is_as_shown(capfd):
    exec(compile(shown("Megatron-LM", "python"), "torch.md", "exec"), {})
    assert capfd.readouterr().out == shown("Megatron-LM", "text")
