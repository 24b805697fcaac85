# SPDX-License-Identifier: Apache-2.0
""" "auto" measures the first step's micro-batches by their sizes, and every step has a plan of its own for what it measured."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ostinato.deepspeed.start.layer_costs import chosen_of, rows_by_size
from support.models import LAYERS
from support.training import Options, in_both_starts
from test_unequal_steps import refused_start, refused_step, unequal_steps

UNEQUAL = Options(dynamic_shape=True, steps=4)
AUTO = {"auto": True, "sizes": "tokens", "keep_order": True, "search": {"time_limit": 2.0}}


def test_every_bit_is_deepspeeds_and_the_costs_are_by_size(world2, stock, tmp_path):
    section = AUTO | {"output": str(tmp_path)}
    expected = stock(world2, UNEQUAL, unequal_steps)
    for _ in range(2):  # the second time, the plan is there
        got = world2.run(in_both_starts, unequal_steps, replace(UNEQUAL, section=section))
        assert [(r["losses"], r["weights"], r["evaluation"]) for r in got] == [
            (r["losses"], r["weights"], r["evaluation"]) for r in expected
        ]
    profile, kept = (json.loads((tmp_path / name).read_text()) for name in ("profile.json", "sizes.json"))
    # The nearest to the mean of lengths 5, 1, 4, 1 of two samples.
    assert profile["tokens"] == kept["profile"]["tokens"] == 8
    assert [row["size"] for row in profile["sizes"]] == [2, 8, 10]
    assert all(len(row["forward"]) == LAYERS and min(row["forward"]) > 0 for row in profile["sizes"])
    other = section | {"sizes": "test_auto_sizes:other"}
    for message in world2.run(refused_start, replace(UNEQUAL, section=other)):
        assert 'was measured with "sizes": "tokens", but this run has "test_auto_sizes:other"' in message
    for damaged in (b"\xff", b"[]", b"{}"):
        (tmp_path / "sizes.json").write_bytes(damaged)
        for message in world2.run(refused_start, replace(UNEQUAL, section=section)):
            assert 'sizes.json is not what a run with "sizes" leaves there' in message, message


def other(item) -> int:
    return item[0].shape[1]


def word(item) -> str:
    return "long"


def test_a_size_that_is_none_stops_the_measuring_on_every_rank(world2):
    section = AUTO | {"sizes": "test_auto_sizes:word"}
    for message in world2.run(refused_step, replace(UNEQUAL, section=section)):
        assert message.startswith(
            "OstinatoError: pipeline rank 0: the size of micro-batch 0: a str is not a number"
        ), message


@pytest.mark.parametrize(
    ("options", "keys", "words"),
    [
        ({"dynamic_shape": False}, {}, "dynamic_shape=True"),
        ({}, {"placement": "placement.toml"}, 'goes with "plan"'),
        ({}, {"size": 3}, '"size" in the "ostinato" section does not go with "auto"'),
    ],
)
def test_what_does_not_go_with_it(world2, options, keys, words):
    for message in world2.run(refused_start, replace(UNEQUAL, section=AUTO | keys, **options)):
        assert words in message, message


# ---- alone


def test_sizes_that_are_measured_are_a_quarter_apart():
    assert chosen_of([512, 2048, 530, 512, 640, 1024]) == [5, 0, 4, 1]  # 866 is the mean
    assert chosen_of([100, 101]) == [0]


def test_times_never_fall_with_the_size():
    layers = [
        SimpleNamespace(by_size=[(20, 200), (10, 220), (90, 300)]),
        SimpleNamespace(by_size=[(5, 6), (7, 8), (9, 10)]),
    ]
    assert rows_by_size([200, 100, 400], layers) == [
        (100, [10, 7], [220, 8]),
        (200, [20, 7], [220, 8]),
        (400, [90, 9], [300, 10]),
    ]
