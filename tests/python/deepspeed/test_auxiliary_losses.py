# SPDX-License-Identifier: Apache-2.0
"""Losses of layers of other stages, which travel with the activations: what docs/howto.md shows trains as in
one process."""

import pytest
from support.documented import MICRO_BATCHES, block, run_elsewhere, train, train_alone
from support.plans import Layout, make_plan
from support.tiers import everyday

CODE = block("howto.md", "Losses of several stages")


LAYOUTS = [
    None, Layout("wave", (2, 4, 6), (0, 1, 1, 0)), Layout("looped", (2, 4, 6), (0, 1, 0, 1)), Layout("split", (3,), (0, 1), split=True, method="zb-h1"),
]  # fmt: skip


@pytest.mark.parametrize(
    "layout", everyday(LAYOUTS, LAYOUTS[-1]), ids=lambda layout: layout.name if layout else "DeepSpeed alone"
)
def test_they_train_as_in_one_process(layout, world2, tmp_path):
    expected = world2.run(train_alone, CODE)[0]
    section = layout and {"plan": str(make_plan(tmp_path, layout, 7, MICRO_BATCHES)), "timeout_s": 60}
    assert world2.run(train, CODE, section)[0] == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0]


def test_they_count(world2):
    without = CODE.replace("+ 0.1 * outputs[1].sum()", "")
    assert without != CODE and world2.run(train_alone, without)[0][1] != pytest.approx(
        world2.run(train_alone, CODE)[0][1], rel=1e-6
    )


def test_they_are_where_the_model_is(world2):
    assert world2.run(run_elsewhere, CODE) == ["meta", "meta"]
