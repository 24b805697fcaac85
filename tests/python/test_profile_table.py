"""How a profile is shown."""

import io

import torch
from rich.console import Console
from torch import nn

from ostinato import _profiler
from ostinato.profile import Job, profile_layers
from ostinato.profile.table import completeness_line, show, size, summary, unrest_lines


def profile():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()]
    return profile_layers(Job(layers=layers, inputs=torch.randn(2, 4), repeats=1, warm_up=0, name="small"))


def test_sizes():
    assert [size(n) for n in (0, 1023, 1024, 1536, 3 << 20, 5 << 30, 5 << 40)] == [
        "0", "1023", "1.0K", "1.5K", "3.0M", "5.0G", "5120.0G"
    ]  # fmt: skip


def test_equal_layers_are_one_row():
    out = io.StringIO()
    show(profile(), Console(file=out, width=100))
    text = out.getvalue()
    row = next(line for line in text.splitlines() if "1:Linear" in line)
    assert row.split()[1] == "2" and "2:Linear" not in text
    assert "aten::addmm" in text and "transfers: not measured" in text


def test_flops_are_those_of_every_layer():
    result = profile()
    product = 2 * 2 * 4 * 4  # of 2 samples and a weight of 4 by 4
    flops = {(row.layer, row.phase): row.flops for row in result.operators if row.name in ("aten::addmm", "aten::mm")}
    # The first layer hands no gradient on.
    assert flops == {(0, "forward"): product, (0, "backward"): product, (1, "forward"): product, (1, "backward"): 2 * product}
    assert {row.flops for row in result.operators if row.name == "aten::tanh"} == {None}
    assert summary(result, "p.json")["flops"] == (2 + 2 * 3) * product


def test_what_is_missing_is_said():
    result = profile()
    assert completeness_line(result).startswith("complete: all")
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
    assert unrest_lines(result) == ["times vary by up to 100 % (layer 3:Tanh): profile again when the machine is quiet"]
