# SPDX-License-Identifier: Apache-2.0
"""Layers measured with sequences of several lengths, and what is said of sizes between them."""

from collections import UserDict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from ostinato.profile.measure.by_size import cut_to, tokens_of, worst_between
from torch import nn

from ostinato import _profiler
from ostinato.profile import Job, ProfileError, profile_layers


class Squared(nn.Module):
    """Its work grows with the square of the length."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.lengths = set()  # that it has seen

    def forward(self, x):
        self.lengths.add(x.shape[1])
        x = self.mix(x)
        return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def profiled(lengths, inputs, squared=None, **given):
    layers = [squared or Squared(), nn.Linear(16, 4)]
    return profile_layers(Job(layers=layers, inputs=inputs, repeats=3, warm_up=1, lengths=lengths, **given))


def test_rows_rise_and_have_every_layer():
    squared = Squared()
    profile = profiled([512, 16, 128], torch.randn(2, 512, 16), squared)
    assert profile.tokens == 1024 and squared.lengths == {16, 128, 512}
    assert [row.size for row in profile.sizes] == [32, 256, 1024]
    assert all(
        len(row.forward) == len(row.backward) == 2 and min(row.forward + row.backward) > 0
        for row in profile.sizes
    )


def test_the_file_holds_them_and_one_without_has_none(tmp_path):
    profile, path = profiled([8, 16], torch.randn(1, 16, 16)), str(tmp_path / "profile.json")
    profile.write(path)
    again = _profiler.read_profile(path)
    assert again.tokens == 16 and [(row.size, row.forward) for row in again.sizes] == [
        (row.size, row.forward) for row in profile.sizes
    ]
    assert not profiled([], torch.randn(1, 16, 16)).sizes


class Named(NamedTuple):
    tokens: torch.Tensor


def test_lengths_and_labels_are_cut_together():
    item = (torch.ones(2, 6, 3), torch.ones(2, 4)), {"targets": torch.ones(2, 6), "weight": torch.ones(2)}
    (hidden, other), labels = cut_to(5, *item)
    assert hidden.shape == (2, 5, 3) and other.shape == (2, 4)
    assert labels["targets"].shape == (2, 5) and labels["weight"].shape == (2,)
    assert tokens_of(item[0]) == 12 and tokens_of(None) == 0
    [named], encoded = cut_to(5, [Named(torch.ones(2, 6))], UserDict({"mask": torch.ones(2, 6)}))
    assert named.tokens.shape == encoded["mask"].shape == (2, 5)


def test_what_cannot_be_cut_is_refused_before_a_layer_runs():
    squared = Squared()
    with pytest.raises(ProfileError, match="has length 16, so it cannot be cut to 17"):
        profiled([8, 17], torch.randn(1, 16, 16), squared)
    assert not squared.lengths
    for inputs in (torch.randn(16), None, ()):
        with pytest.raises(ProfileError, match="samples and length"):
            cut_to(4, inputs, None)


class Masked(nn.Module):
    def forward(self, pair):
        hidden, mask = pair
        return torch.where(mask[0, 0].tril(), hidden @ hidden.transpose(1, 2), 0.0)


def test_both_sides_of_a_mask_are_cut():
    job = Job(layers=[Masked()], inputs=(torch.randn(2, 16, 4), torch.ones(1, 1, 16, 16).bool()),
              repeats=1, warm_up=0, lengths=[4, 8])  # fmt: skip
    assert [row.size for row in profile_layers(job).sizes] == [8, 16]


def test_what_fails_on_a_short_micro_batch_fails_first():
    ran = []
    job = Job(layers=[lambda x: ran.append(len(x[0])) or x + torch.ones(16, 4)], inputs=torch.randn(2, 16, 4),
              repeats=3, warm_up=0, lengths=[8])  # fmt: skip
    with pytest.raises(
        ProfileError, match=r"--sizes: of a micro-batch that was cut to length 8, layer .* raised"
    ):
        profile_layers(job)
    assert ran == [8]


def test_a_module_has_no_layers_to_measure_so():
    job = Job(module=Squared(), inputs=(torch.randn(1, 8, 16),), repeats=1, warm_up=0, lengths=[4])
    with pytest.raises(ProfileError, match="needs a PipelineModule"):
        profile_layers(job)


def test_the_error_is_that_of_a_size_left_out():
    def row(size, time):
        return SimpleNamespace(size=size, forward=[time], backward=[0])

    assert worst_between([row(10, 100), row(20, 200), row(30, 300)]) == 0
    assert worst_between([row(10, 100), row(20, 400), row(30, 900)]) == pytest.approx(0.25)  # 500 on the line
    assert worst_between([row(10, 100), row(20, 400)]) == 0
