# SPDX-License-Identifier: Apache-2.0
"""How a profile is shown."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from ostinato import _profiler
from ostinato.cli import run_cpp
from ostinato.profile import Job, profile_layers
from ostinato.profile.machine.transfers import given_transfers
from ostinato.profile.measure.check import StageCheck, Figures
from ostinato.profile.views.table import (
    block_lines,
    check_table,
    completeness_line,
    launch_lines,
    show,
    short_size,
    summary,
    transfer_lines,
    unrest_lines,
)


def profile():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()]
    return profile_layers(Job(layers=layers, inputs=torch.randn(2, 4), repeats=1, warm_up=0, name="small"))


def test_sizes():
    assert [short_size(n) for n in (0, 1023, 1024, 1536, (1 << 20) - 1, 3 << 20, 5 << 30, 5 << 40)] == [
        "0", "1023", "1.0Ki", "1.5Ki", "1.0Mi", "3.0Mi", "5.0Gi", "5.0Ti"
    ]  # fmt: skip


def test_equal_layers_are_one_row():
    out = io.StringIO()
    show(profile(), Console(file=out, width=100))
    text = out.getvalue()
    row = next(line for line in text.splitlines() if "1:Linear" in line)
    assert row.split()[1] == "2" and "2:Linear" not in text
    assert "aten::addmm" in text and "transfers: not measured" in text


def test_names_move_no_cursor_and_are_no_markup():
    """A layer's class has the name that whoever wrote it gave it."""
    strange = type("[red]x\x1b[2J\n", (nn.Linear,), {})
    out = io.StringIO()
    show(
        profile_layers(
            Job(layers=[strange(4, 4)], inputs=torch.randn(2, 4), repeats=1, warm_up=0, name="\x1b]0;a")
        ),
        Console(file=out, width=120),
    )
    text = out.getvalue()
    assert "\x1b" not in text and "0:[red]x\\u001b[2J\\n" in text and "\\u001b]0;a on" in text


def test_flops_are_those_of_every_layer():
    result = profile()
    product = 2 * 2 * 4 * 4  # of 2 samples and a weight of 4 by 4
    flops = {
        (row.layer, row.phase): row.flops
        for row in result.operators
        if row.name in ("aten::addmm", "aten::mm")
    }
    # The first layer hands no gradient on.
    assert flops == {
        (0, "forward"): product,
        (0, "backward"): product,
        (1, "forward"): product,
        (1, "backward"): 2 * product,
    }
    assert {row.flops for row in result.operators if row.name == "aten::tanh"} == {None}
    assert summary(result, "p.json")["flops"] == (2 + 2 * 3) * product


@pytest.mark.parametrize(
    ("latency", "bandwidth", "said"),
    [
        (20_000, 0, "20 us, bytes cost nothing"),
        (500, 12, "0.5 us + bytes / 12.00 GB/s"),
        (0, 12, "0 us + bytes / 12.00 GB/s"),
    ],
)
def test_transfers_that_were_given_are_not_told_as_measured(latency, bandwidth, said):
    given = SimpleNamespace(transfers=given_transfers(latency, bandwidth))
    assert transfer_lines(given) == [f"transfer, as given: {said}"]


def test_what_is_beside_the_layers_is_said():
    result = profile()
    assert block_lines(result) == []
    rank = result.rank
    rank.forward, rank.backward, rank.read, rank.step_time = 201_000, 114_000, 3_000, 4_120_000
    result.rank = rank
    assert block_lines(result) == [
        "a block takes 201 us forward and 114 us backward on top of its layers", "a batch takes 3 us to read",
        "a step takes 4.12 ms on top of blocks and optimizer",
    ]  # fmt: skip
    rank.average = 1_020_000
    result.rank = rank
    assert (
        block_lines(result)[1]
        == "on average layers take 1.02 times their medians, which plans take into account"
    )
    assert summary(result, "p.json")["block_forward"] == 201_000


def test_what_is_missing_is_said():
    result = profile()
    assert completeness_line(result).startswith("complete: the profile has all")
    result.completeness.complete, result.completeness.reason = False, "3 operators did not end"
    assert completeness_line(result) == "NOT complete: 3 operators did not end"
    assert summary(result, "p.json")["complete"] is False


def test_a_restless_machine_is_noticed():
    result = profile()
    rows = result.layers
    for row in rows:
        row.forward = row.backward = _profiler.spread_of([100, 100, 100, 100])
    result.layers = rows
    assert unrest_lines(result) == []
    rows[3].backward = _profiler.spread_of([100, 100, 100, 300, 300])
    result.layers = rows
    [line] = unrest_lines(result)
    assert "1 of 3 measured layers" in line and "200 % of the median: '3:Tanh'; profile again on" in line
    told = summary(result, "p.json")
    assert told["noise"] in line and told["noise"] in result.json()


def test_the_command_line_warns_in_the_same_words(tmp_path, capfd):
    """`ostinato partition`, which is C++, and the table after `ostinato profile`."""
    result = profile()
    rows = result.layers
    rows[3].backward = _profiler.spread_of([10**8, 10**8, 10**8, 3 * 10**8, 3 * 10**8])
    result.layers, path = rows, tmp_path / "p.json"
    path.write_text(result.json())
    run_cpp(["partition", str(path), "--devices", "1", "--output", str(tmp_path / "p.toml")])
    [line] = unrest_lines(result)
    assert f"warning: {path}: {line}\n" in capfd.readouterr().err


def test_noise_gives_no_advice():
    result = profile()
    rows = result.layers
    for row in rows:
        # Nearly all of it between the operators.
        row.forward = row.backward = _profiler.spread_of([10**9] * 4)
        row.backward_input = row.backward_weight = _profiler.spread_of([10**9] * 4)
    result.layers = rows
    assert launch_lines(result)
    measured = Figures(1000, 1000, 8, 8)
    check = StageCheck(0, 4, measured, measured, 1000, 1000, 1.0)
    out = io.StringIO()
    Console(file=out, width=120).print(check_table(result, [check]))
    assert "+0.0 %" in out.getvalue() and "?" not in out.getvalue()
    rows[0].forward = _profiler.spread_of([10**9, 10**9, 10**9, 3 * 10**9, 3 * 10**9])
    result.layers = rows
    assert launch_lines(result) == []
    Console(file=out, width=120).print(check_table(result, [check]))
    assert out.getvalue().count("?") == 4  # memory is known all the same
