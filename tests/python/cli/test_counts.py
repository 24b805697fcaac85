# SPDX-License-Identifier: Apache-2.0
"""Of one thing no message speaks in the plural: the commands over one micro-batch, device, layer and block,
and the helper that they share."""

import re

import pytest
from ostinato import _search, report
from ostinato.errors import counted
from support.profiles import write_profile
from test_report import trace, write

NOUNS = "micro-batches|devices|layers|stages|blocks|steps|ranks|chunks|repetends|replicas|cores|nodes|candidates|entries|times|sizes"
PLURAL_OF_ONE = re.compile(rf"(?<![\d.,/])\b1 (?:{NOUNS})\b")
ONE_OF_ALL = """format = "ostinato-placement/1"
name = "one"
[[devices]]
[[blocks]]
name = "a"
devices = [0]
time = 5
"""
SIZES = """format = "ostinato-sizes/1"
size = 1
[[micro_batches]]
size = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("counts")
    write_profile(made / "p.json", [900])
    (made / "one.toml").write_text(ONE_OF_ALL)
    (made / "sizes.toml").write_text(SIZES)
    for words in (
        "search one.toml --micro-batches 1 --output s.json",
        "search one.toml --micro-batches 2 --output two.json",
    ):
        assert run(made, words) == 0
    assert (
        run(made, "plan p.json --devices 1 --micro-batches 1 --output pl.json --placement-output pl.toml")
        == 0
    )
    (made / "traces").mkdir()
    write(made / "traces", trace(0, step_seconds=[9.0, 2.0], step=2))
    return made


def run(folder, words: str) -> int:
    return _search.main(
        [str(folder / word) if word.endswith((".json", ".toml", ".svg")) else word for word in words.split()]
    )


@pytest.mark.parametrize(
    "words",
    [
        "search one.toml --micro-batches 1 -v --explain --output o.json",
        "search one.toml --micro-batches 1 --objective span --output o.json",
        "search one.toml --micro-batches 1 --pareto",
        "search one.toml --steady-state",
        "search one.toml --sizes sizes.toml --output o.json",
        "search one.toml --method 1f1b --micro-batches 1 --output o.json",
        "search one.toml --method zb-v --micro-batches 1 --output o.json",
        "verify s.json one.toml",
        "verify two.json one.toml",
        "verify pl.json pl.toml --profile p.json",
        "verify two.json pl.toml",
        "simulate s.json one.toml --explain",
        "simulate s.json one.toml --jitter 0.1",
        "compare s.json one.toml two.json one.toml",
        "show s.json one.toml",
        "show s.json one.toml --format svg",
        "lower pl.json pl.toml",
        "plan p.json --devices 1 --micro-batches 1 -v --output o.json --placement-output o.toml",
        "plan p.json --devices 1 --micro-batches 1 --replicas auto --output o.json --placement-output o.toml",
        "plan p.json --devices 2 --micro-batches 1 --output o.json --placement-output o.toml",
        "plan p.json --devices 2 --micro-batches 1 --all-devices --output o.json --placement-output o.toml",
        "plan p.json --devices 1 --sizes sizes.toml --output o.json --placement-output o.toml",
        "partition p.json --devices 1 --micro-batches 1 --output o.toml",
        "partition p.json --devices 2 --micro-batches 1 --output o.toml",
        "placement v --devices 1 --output o.toml",
        "placement v --devices 2 --layers 1 --output o.toml",
    ],
)
def test_commands(folder, words, capfd):
    run(folder, words)  # some are refused: their messages count too
    out, err = capfd.readouterr()
    assert out + err
    assert not PLURAL_OF_ONE.findall(" ".join((out + err).split())), out + err


def test_the_report(folder, capsys):
    assert report.main([str(folder / "traces")]) == 0
    out, err = capsys.readouterr()
    assert out + err and not PLURAL_OF_ONE.findall(out + err), out + err


@pytest.mark.parametrize(
    ("count", "of", "said"),
    [
        (1, "entry", "1 entry"),
        (0, "entry", "0 entries"),
        (2, "batch", "2 batches"),
        (3, "process", "3 processes"),
    ],
)
def test_python_counts_as_the_command_line_does(count, of, said):
    assert counted(count, of) == said
