# SPDX-License-Identifier: Apache-2.0
"""Plans as torch.distributed.pipelining runs them, against its own schedules of the same kind: losses and
gradients, bit for bit."""

import pytest
import torch
from support import torch_jobs
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.torch_jobs import MICRO_BATCHES, Case

LAYERS = 8
ONE, LOOPED, WAVE = (4,), (2, 4, 6), (1, 4, 6)
CASES = {  # torch's name, our layout
    "1f1b": ("Schedule1F1B", Layout("chain", ONE, (0, 1), method="1f1b")),
    "gpipe": ("ScheduleGPipe", Layout("chain", ONE, (0, 1), method="gpipe")),
    "interleaved": (
        "ScheduleInterleaved1F1B",
        Layout("looped", LOOPED, (0, 1, 0, 1), method="interleaved-1f1b"),
    ),
    "interleaved-zb": (
        "ScheduleInterleavedZeroBubble",
        Layout("looped", LOOPED, (0, 1, 0, 1), True, "interleaved-zb"),
    ),
    "zb-h1": ("ScheduleInterleavedZeroBubble", Layout("chain", ONE, (0, 1), True, "zb-h1")),
    "zb-v": ("ScheduleZBVZeroBubble", Layout("wave", WAVE, (0, 1, 1, 0), True, "zb-v")),
    "dualpipe-v": ("ScheduleDualPipeV", Layout("wave", WAVE, (0, 1, 1, 0), method="dualpipe-v")),
    "searched": ("ScheduleZBVZeroBubble", Layout("wave", WAVE, (0, 1, 1, 0), True)),
}


@pytest.mark.parametrize("case", everyday(CASES, "1f1b", "interleaved-zb", "searched"))
def test_a_plan_computes_what_torch_s_own_schedule_does(world2, tmp_path, case):
    kind, layout = CASES[case]
    planned = Case(str(make_plan(tmp_path, layout, LAYERS, MICRO_BATCHES)))
    expected = world2.run(torch_jobs.train_on_torch, planned, kind)
    got = world2.run(torch_jobs.train_on_torch, planned)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours["losses"] == theirs["losses"]
        for mine, own in zip(ours["gradients"], theirs["gradients"], strict=True):
            assert mine.keys() == own.keys() and mine
            assert not [name for name, value in own.items() if not torch.equal(mine[name], value)]
    assert any(result["losses"][0] is not None for result in got)


def test_a_loss_that_the_last_layer_makes(world2, tmp_path):
    """A split backward's second half begins at the product with the weight, which is the loss here; and torch hands
    loss_kwargs on to it."""
    case = Case(str(make_plan(tmp_path, CASES["interleaved-zb"][1], LAYERS, MICRO_BATCHES)))
    none, [(ours, alone)] = world2.run(torch_jobs.train_scored_on_torch, case)
    assert not none and torch.allclose(ours, alone, atol=1e-7)


def test_split_backwards_lose_no_gradients_of_fully_shard(world2, tmp_path):
    case = Case(str(make_plan(tmp_path, Layout("one", (4,), (0, 0), split=True), LAYERS, MICRO_BATCHES)))
    assert world2.run(torch_jobs.without_gradients_on_torch, case) == [[], []]
