# SPDX-License-Identifier: Apache-2.0
""""auto" measures the first step's micro-batches by their sizes, and every step has a plan of its own for what it measured."""

import json
from dataclasses import replace

import pytest
from ostinato.deepspeed.start.layer_clock import Measured
from ostinato.deepspeed.start.sized_costs import at_size, clusters_of, points_of, rows_of
from ostinato.profile.measure.samples import Sample, Samples
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
        assert [(r["losses"], r["weights"], r["evaluation"]) for r in got] == [(r["losses"], r["weights"], r["evaluation"]) for r in expected]
    profile, kept = (json.loads((tmp_path / name).read_text()) for name in ("profile.json", "sizes.json"))
    assert profile["tokens"] == kept["tokens"] == 6  # the mean of lengths 5, 1, 4, 1 of two samples
    assert [row["size"] for row in profile["sizes"]] == [2, 8, 10]
    assert all(len(row["forward"]) == LAYERS and min(row["forward"]) > 0 for row in profile["sizes"])
    other = section | {"sizes": "test_auto_sizes:other"}
    for message in world2.run(refused_start, replace(UNEQUAL, section=other)):
        assert 'was measured with "sizes": "tokens", and now it is "test_auto_sizes:other"' in message


def other(item) -> int:
    return item[0].shape[1]


def word(item) -> str:
    return "long"


def test_a_size_that_is_none_stops_the_measuring_on_every_rank(world2):
    section = AUTO | {"sizes": "test_auto_sizes:word"}
    for message in world2.run(refused_step, replace(UNEQUAL, section=section)):
        assert message.startswith("OstinatoError: pipeline rank 0: the size of micro-batch 0: a str is no number"), message


@pytest.mark.parametrize(
    ("options", "keys", "words"),
    [
        ({"dynamic_shape": False}, {}, "dynamic_shape=True"),
        ({}, {"placement": "placement.toml"}, 'belongs to "plan"'),
        ({}, {"size": 3}, '"size" in the "ostinato" section does not go with "auto"'),
    ],
)
def test_what_does_not_go_with_it(world2, options, keys, words):
    for message in world2.run(refused_start, replace(UNEQUAL, section=AUTO | keys, **options)):
        assert words in message, message


# ---- alone


def samples(*times: int) -> list[Sample]:
    return [Sample(time, kept=10 * time, peak=20 * time, computed=time) for time in times]


def test_sizes_within_a_quarter_are_one_point():
    assert clusters_of([512, 2048, 530, 512, 640]) == [[512, 530], [640], [2048]]


def test_points_follow_the_samples_and_never_fall():
    sizes = [100, 400, 200]
    clusters = clusters_of(sizes)
    assert points_of(samples(10, 90, 30, 12, 88, 28, 11, 89, 29), sizes, clusters) == ((100, 11), (200, 29), (400, 89))
    assert points_of(samples(30, 20, 10), sizes, clusters) == ((100, 30), (200, 30), (400, 30))
    assert points_of(samples(10, 90), sizes, clusters) == () == points_of([], sizes, clusters)


def test_a_layer_at_the_reference():
    sizes = [100, 400]
    clusters = clusters_of(sizes)
    layer = Measured(0, "0:Linear", Samples(samples(10, 70), samples(20, 140)), input_bytes=800, output_bytes=400)
    resized, curves = at_size(layer, sizes, clusters, 250)
    assert [sample.time for sample in resized.samples.forward] == [40, 40]
    assert [sample.time for sample in resized.samples.backward] == [80, 80]
    assert [sample.kept for sample in resized.samples.forward] == [250, 438]  # bytes by size
    assert (resized.input_bytes, resized.output_bytes) == (500, 250)
    (low, high) = rows_of([curves, curves], clusters)
    assert (low.size, low.forward, low.backward) == (100, [10, 10], [20, 20])
    assert (high.size, high.forward, high.backward) == (400, [70, 70], [140, 140])


def test_rows_need_two_points_of_whole_numbers():
    assert rows_of([], clusters_of([100, 101])) == []
    assert rows_of([], clusters_of([1.5, 9])) == []
