# SPDX-License-Identifier: Apache-2.0
"""What commands print for people keeps to 80 columns, also where a model gives its layers long names; a word
is never broken."""

import io
import json

import pytest
from ostinato import _search, report
from ostinato.trace import read_traces
from rich.console import Console
from support.profiles import write_profile
from test_report import trace, write

COLUMNS = 80
NAME = "a_package.modules.VeryLongTransformerBlockWithExpertsAndAttention"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A profile of layers with long names, a plan of it, one of 1F1B, and one in little memory."""
    made = tmp_path_factory.mktemp("widths")
    path = write_profile(made / "p.json", [900, 300, 200, 100, 500, 100, 100, 900], shardable=(0, 7))
    content = json.loads(path.read_text())
    for row in content["layers"]:
        row["name"] = f"{row['index']}:{NAME}"
    path.write_text(json.dumps(content))
    plan = ["plan", "p.json", "--devices", "4", "--micro-batches", "8", "--quiet", "--time-limit", "1"]
    for words in (
        [*plan, "--output", "pl.json", "--placement-output", "pl.toml"],
        [*plan, "--method", "1f1b", "--output", "f.json", "--placement-output", "f.toml"],
        ["partition", "p.json", "--devices", "4", "--micro-batches", "8", "--output", "pa.toml"],
        ["placement", "v", "--devices", "4", "--weight", "1us", "--output", "v.toml"],
    ):
        assert run(made, words) == 0
    return made


def run(folder, words) -> int:
    return _search.main([str(folder / word) if word.endswith((".json", ".toml")) else word for word in words])


@pytest.mark.parametrize(
    "words",
    [
        "plan p.json --devices 4 --micro-batches 8 --time-limit 1 --output o.json --placement-output o.toml",
        "plan p.json --devices 4 --micro-batches 8 --time-limit 1 -v --output o.json --placement-output o.toml",
        "plan p.json --devices 4 --micro-batches 8 --time-limit 1 --device-memory 12KiB --output o.json --placement-output o.toml",
        "plan p.json --devices 4 --micro-batches 16 --replicas auto --time-limit 1 --output o.json --placement-output o.toml",
        "partition p.json --devices 4 --micro-batches 8 --output o.toml",
        "partition p.json --devices 4 --micro-batches 8 --split-backward --output o.toml",
        "simulate pl.json pl.toml --jitter 0.1 --explain",
        "compare pl.json f.json",
        "search pa.toml --micro-batches 8 --explain --output s.json",
        "search pa.toml --micro-batches 8 --steady-state",
        "show pl.json pl.toml",
        "verify pl.json pl.toml",
        "verify pl.json pl.toml --profile p.json",
        "placement m",
        "config",
    ],
)
def test_commands_keep_to_the_columns(words, folder, capfd, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(folder, words.split()) == 0
    printed = capfd.readouterr().out
    assert printed
    assert too_long(printed) == []


def too_long(text: str) -> list[str]:
    """Lines that could have been broken: more than a word behind the blanks at the left. A file's name has no
    blank to break at."""
    return [
        line
        for line in text.splitlines()
        if len(line) > COLUMNS and len(line.split()) > 1 and "/" not in line
    ]


def test_the_timeline_is_as_wide_as_the_environment_says(folder, capfd, monkeypatch):
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(folder, ["show", "pl.json", "pl.toml"]) == 0
        assert max(map(len, capfd.readouterr().out.splitlines())) == columns


def test_the_report_keeps_to_the_columns(tmp_path):
    out = io.StringIO()
    report.show(
        report.summary(read_traces(write(tmp_path, trace(0), trace(1)))), Console(file=out, width=COLUMNS)
    )
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= COLUMNS and any(
        "predicted" in line and "measured" in line and "kind" in line for line in lines
    )
