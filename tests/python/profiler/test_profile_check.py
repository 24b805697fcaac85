# SPDX-License-Identifier: Apache-2.0
"""Stages measured as a whole beside what the profile's rows say."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato._profiler import spread_of
from ostinato.profile import Job, ProfileError, profile_layers
from ostinato.profile.measure.check import check_profile, launch_share, predict, refuse_graph
from ostinato.profile.model.stage import balanced
from ostinato.profile.model.tensors import Copies
from ostinato.profile.views.table import launch_lines

FP32 = 4


def row(forward=0, backward=0, kept=0, forward_workspace=0, backward_workspace=0):
    return SimpleNamespace(
        forward=SimpleNamespace(median=forward), backward=SimpleNamespace(median=backward), kept=kept,
        forward_workspace=forward_workspace, backward_workspace=backward_workspace, index=0, passed=[], released=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "stages", "cuts"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([5, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1, 1, 9], 3, [(0, 2), (2, 3), (3, 4)]),
        ([0, 0, 0], 3, [(0, 1), (1, 2), (2, 3)]),
        ([4, 4], 5, [(0, 1), (1, 2)]),
        ([7], 1, [(0, 1)]),
    ],
)
def test_stages_of_about_equal_weight(weights, stages, cuts):
    assert balanced(weights, stages) == cuts


def test_a_stage_peaks_where_workspace_meets_what_is_kept():
    rows = [row(10, 20, kept=100, forward_workspace=5), row(1, 2, kept=50, backward_workspace=30)]
    figures = predict(rows)
    assert (figures.forward, figures.backward, figures.kept) == (11, 22, 150)
    assert figures.workspace == 30
    # 400 beside the 100 that are live in the first layer is 350 above the 150 at the end of the forward.
    assert predict([row(kept=100, forward_workspace=400), row(kept=50)]).workspace == 350


def job():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
    inputs, labels = torch.randn(8, 16), torch.zeros(8, 4)
    return Job(
        layers=layers, inputs=inputs, labels=labels, loss_fn=nn.functional.mse_loss, repeats=2, warm_up=1
    )


def test_kept_memory_of_every_stage_is_what_the_layer_rows_say():
    profile = profile_layers(job())
    checks = check_profile(job(), profile, 3)
    assert [check.first for check in checks] == [0, *(check.last for check in checks[:-1])]
    assert checks[-1].last == 5
    for check in checks:
        assert check.measured.kept == check.from_layers.kept
        assert check.measured.forward > 0 and check.measured.backward > 0 and check.drift > 0
    assert sum(check.measured.kept for check in checks) > 0  # a first layer alone may keep nothing
    assert sum(check.from_layers.forward for check in checks) == sum(r.forward.median for r in profile.layers)


def first_row(x):
    return x[:1].expand(len(x), -1)


def every_second_column(x):
    return torch.cat([x, x], -1)[:, ::2]


@pytest.mark.parametrize("read", [first_row, every_second_column])
def test_a_layer_that_reads_numbers_with_gaps_between_them_copies_them(read):
    layers = [nn.Linear(64, 64), read, nn.Linear(64, 64)]
    given = Job(
        layers=layers,
        inputs=torch.randn(32, 64),
        labels=torch.zeros(32, 64),
        loss_fn=nn.functional.mse_loss,
        repeats=1,
        warm_up=0,
    )
    profile = profile_layers(given)
    [check] = check_profile(given, profile, 1)
    measured, told = check.measured, check.from_layers
    assert (measured.kept, measured.workspace) == (told.kept, told.workspace)
    assert min(profile.layers[2].backward_input.repeats, profile.layers[2].backward_weight.repeats) == 1


def test_copies_keep_what_tensors_share():
    whole = torch.arange(12.0).view(3, 4)
    copies = Copies()
    left, right, dense = (copies.of(part) for part in (whole[:, :2], whole[:, 2:], whole))
    assert left.stride() == (4, 1) and left.data_ptr() != whole.data_ptr()
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr() != dense.data_ptr()
    left.relu_().mul_(0)
    assert right.tolist() == [[2, 3], [6, 7], [10, 11]] and whole.sum() == dense.sum() == 66


def test_operator_rows_and_launching_make_up_the_layers():
    """Over the whole model, operators and the launching between them are the layers' time, where nothing is
    cut off."""
    profile = profile_layers(job())
    [check] = check_profile(job(), profile, 1)
    operators = sum(r.self_time.median for r in profile.operators if r.phase == "forward")
    assert 0 <= launch_share(profile) <= 1
    assert check.operators_forward >= min(operators, check.from_layers.forward)


class SlowHost(nn.Module):
    """What a busy interpreter does to small operators."""

    def forward(self, x):
        for _ in range(4):
            time.sleep(0.01)
            x = x + 1
        return x


def test_where_launching_dominates_the_report_says_so():
    profile = profile_layers(
        Job(layers=[SlowHost(), SlowHost()], inputs=torch.randn(2, 2), repeats=2, warm_up=0)
    )
    assert launch_share(profile) > 0.5
    rows = profile.layers
    for row in rows:  # the times of a restless machine would give no advice
        row.forward = row.backward = row.backward_input = row.backward_weight = spread_of([10**9] * 4)
    profile.layers = rows
    [line] = launch_lines(profile)
    assert "goes into launching operators" in line and "will gain more than a schedule" in line


def test_checkpointed_layers_are_checkpointed_one_by_one():
    wide = 1 << 14
    layers = [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, wide), nn.Linear(wide, 8)), nn.Linear(8, 8)]
    first, second = (
        Job(layers=layers, inputs=torch.randn(4, 8), checkpoint_interval=1, repeats=1, warm_up=1)
        for _ in range(2)
    )
    [check] = check_profile(second, profile_layers(first), 1)
    assert check.measured.kept == check.from_layers.kept < 4 * wide * FP32


def kept(layers):
    """Of each row, and of the model measured as one layer."""
    inputs = torch.randn(4, 8)
    rows = profile_layers(Job(layers=layers, inputs=inputs, repeats=1, warm_up=1)).layers
    whole = profile_layers(Job(layers=[nn.Sequential(*layers)], inputs=inputs, repeats=1, warm_up=1)).layers
    return [row.kept for row in rows], whole[0].kept


OUT = 4 * 8 * FP32


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (
            [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)],
            [0, OUT, OUT],
        ),  # tanh needs its output, not its input
        ([nn.Linear(8, 8), nn.Linear(8, 8)], [OUT, OUT]),
        ([nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 8)], [OUT, 0, OUT]),  # handed on to one that needs it
        ([nn.Linear(8, 8), nn.Identity(), nn.Tanh()], [0, 0, OUT]),
        ([nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)], [OUT, 0, OUT]),
    ],
)
def test_an_output_is_kept_where_a_backward_needs_it(layers, expected):
    rows, whole = kept(layers)
    assert rows == expected
    assert sum(rows) == whole


def test_a_graph_of_operators_has_no_stages_to_measure():
    with pytest.raises(ProfileError, match="--check needs a model that is a chain"):
        refuse_graph(Job(module=nn.Linear(2, 2), inputs=torch.zeros(2)))
    refuse_graph(job())
