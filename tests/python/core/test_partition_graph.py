# SPDX-License-Identifier: Apache-2.0
"""ostinato.partition_graph: the bytes of `ostinato partition GRAPH.csv`, as objects; and of a profile."""

import json

import ostinato
import pytest
from ostinato import _search
from support.profiles import write_profile

GRAPH = """id,successors,predecessors,same device,tensor size,operations,memory,device kind,name
1,2;3,,,10,100,1,NO,a
2,4,1,,10,100,1,NO,b
3,4,1,,10,100,1,NO,c
4,,2;3,,10,100,1,NO,d
5,,,,10,50,1,GPU,e
"""
DEVICES = """id,memory,operations per time unit,rates,kind
7,1000,100,10,CPU
8,1000,50,,GPU
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "graph.csv").write_text(GRAPH)
    (tmp_path / "devices.csv").write_text(DEVICES)
    return tmp_path


def command(capfd, *words) -> dict:
    assert _search.main([*map(str, words), "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("strategy", ["best", "hash", "critical-path", "heft"])
def test_it_is_what_the_command_says_and_writes(strategy, files, capfd):
    graph, devices, output = files / "graph.csv", files / "devices.csv", files / "out.csv"
    words = f"partition {graph} --devices {devices} --strategy {strategy} --seed 3 --output {output}"
    told = command(capfd, *words.split())
    found = ostinato.partition_graph(graph, devices=devices, strategy=strategy, seed=3)
    assert found.text == output.read_text()
    assert found.report == {key: value for key, value in told.items() if key not in ("status", "output")}
    assert found.makespan >= found.lower_bound == 4.0
    assert str(found).startswith(told["method"])
    found.save(files / "again.csv")
    assert (files / "again.csv").read_bytes() == output.read_bytes()


def test_rows_are_objects(files):
    found = ostinato.partition_graph(files / "graph.csv", devices=str(files / "devices.csv"))
    assert [row.id for row in found.rows] == [1, 2, 3, 4, 5]
    assert found.rows[4] == ostinato.GraphRow(id=5, device=8, start=0.0, end=1.0)
    assert max(row.end for row in found.rows) == found.makespan == 4.0


def test_the_layers_of_a_profile_are_vertices(files, capfd):
    path = write_profile(files / "profile.json", [100, 300, 200, 100])
    found = ostinato.partition_graph(ostinato.Profile.from_file(path), devices=2, strategy="heft")
    told = command(
        capfd, "partition", path, "--devices", 2, "--strategy", "heft", "--output", files / "out.csv"
    )
    assert found.text == (files / "out.csv").read_text()
    assert found.makespan == told["makespan"] and len(found.rows) == 8
    forwards = ostinato.partition_graph(
        ostinato.Profile.from_file(path), devices=2, strategy="heft", inference=True
    )
    assert len(forwards.rows) == 4 and forwards.makespan < found.makespan


@pytest.mark.parametrize(
    ("keywords", "error", "says"),
    [
        ({"strategy": "hush"}, ostinato.UsageError, "did you mean hash"),
        ({"schedule": "lifo"}, ostinato.UsageError, "lifo"),
        ({"published_program": True}, ostinato.UsageError, "cannot be combined with best"),
        ({"devices": 4}, ostinato.UsageError, "devices for a graph must be a CSV file"),
        ({"device_memory": "1GiB"}, ostinato.UsageError, "are for a Profile, not for a graph"),
        ({"runs": -5}, ostinato.UsageError, "runs needs a whole number from 0, got -5"),
        ({"seed": 2.5}, ostinato.UsageError, "seed is 2.5; it must be a whole number"),
        ({"time_limit": -1}, ostinato.UsageError, "time_limit needs a decimal number"),
        ({"graph": ostinato.placement}, TypeError, "PathLike"),
    ],
)
def test_what_does_not_go_is_said(keywords, error, says, files):
    given = {"graph": files / "graph.csv", "devices": files / "devices.csv"} | keywords
    with pytest.raises(error, match=says):
        ostinato.partition_graph(given.pop("graph"), **given)


def test_a_wrong_file_has_its_line(files):
    (files / "graph.csv").write_text(GRAPH.replace("2,4,1", "2,9,1"))
    with pytest.raises(ostinato.InputError, match="names 9 as a successor") as raised:
        ostinato.partition_graph(files / "graph.csv", devices=files / "devices.csv")
    assert raised.value.line == 3
    path = write_profile(files / "profile.json", [100, 300])
    with pytest.raises(ostinato.UsageError, match="devices for a profile must be a number"):
        ostinato.partition_graph(ostinato.Profile.from_file(path), devices=files / "devices.csv")
