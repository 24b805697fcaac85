"""Any nn.Module as a graph of operators: the rows add up to the module, and know their branches."""

import pytest
import torch
from torch import nn

from ostinato.profile import Job, ProfileError, profile_layers
from ostinato.profile.graph import build_graph
from ostinato.profile.kept import freed_outputs
from ostinato.profile.settings import read_settings


class Branches(nn.Module):
    """Two branches that meet, an in-place operator, views that are read by several, a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.relu, self.batch = nn.ReLU(inplace=True), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        mixed = self.norm(self.relu(self.a(x)) + torch.tanh(self.b(x)))
        left, right = mixed.chunk(2, -1)
        mixed = torch.cat([right, left], -1)
        attended = self.attention(mixed, mixed, mixed, need_weights=False)[0]
        return attended + self.batch(mixed.transpose(1, 2)).transpose(1, 2)


def job(module, inputs, **options):
    return Job(module=module, inputs=inputs, repeats=2, warm_up=1, **options)


def rows_of(profile):
    return {row.name.split(":")[1]: row for row in profile.layers}


def whole(module, inputs, **options):
    """The module measured as one layer."""
    return profile_layers(Job(layers=[module], inputs=inputs, repeats=2, warm_up=1, **options)).layers[0]


def test_the_rows_keep_to_the_byte_what_the_module_keeps():
    torch.manual_seed(0)
    loss = {"labels": torch.randn(2, 4, 8), "loss_fn": nn.functional.mse_loss}
    inputs = torch.randn(2, 4, 8)
    profile = profile_layers(job(Branches(), inputs, **loss))
    measured = whole(Branches(), inputs, **loss)
    assert sum(row.kept for row in profile.layers) == measured.kept
    assert sum(row.parameters for row in profile.layers) == measured.parameters
    assert profile.completeness.complete


def test_operators_of_the_same_kind_and_shape_are_measured_once():
    rows = rows_of(profile_layers(job(Branches(), torch.randn(2, 4, 8))))
    assert rows["a linear"].same_as == -1 and rows["b linear"].same_as == rows["a linear"].index
    assert rows["attention linear"].same_as == -1  # three times as wide


def test_branches_are_read_from_where_they_come():
    chain = build_graph(job(Branches(), torch.randn(2, 4, 8)), read_settings({}, None))
    names = [name.split(":")[1] for name, _ in chain.rows]
    sources = dict(zip(names, chain.reads, strict=True))
    assert sources["a linear"] == sources["b linear"] == [None]
    meet = names.index("add")
    assert {names[row] for row, _ in chain.reads[meet]} == {"relu relu_", "tanh"}
    assert all(row < index for index, reads in enumerate(chain.reads) for row, _ in filter(None, reads))


def test_what_the_caller_gets_is_not_freed():
    class Two(nn.Module):
        def forward(self, x):
            return x + 1, torch.tanh(x * 2)

    chain = build_graph(job(Two(), torch.randn(4, requires_grad=False)), read_settings({}, None))
    assert [name.split(":")[1] for name, _ in chain.rows] == ["add", "mul", "tanh"]
    assert freed_outputs(chain)[0] == freed_outputs(chain)[2] == 0


def test_named_arguments():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, scale):
            return x * self.weight * scale

    profile = profile_layers(job(Scaled(), {"scale": torch.ones(4), "x": torch.ones(2, 4)}))
    assert [row.name for row in profile.layers] == ["0:mul", "1:mul"]
    assert [row.parameters for row in profile.layers] == [16, 0]


def test_frozen_parameters_take_no_gradient():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    first, second = profile_layers(job(module, torch.randn(2, 4))).layers
    assert first.gradients == 0 and first.parameters == 20 * 4
    assert second.gradients == 20 * 4 and second.same_as == -1
    assert second.backward_input.median == 0  # what it reads needs no gradient


def test_a_module_that_cannot_be_exported_is_told_apart():
    class Asks(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum().item() > 0 else x - 1

    with pytest.raises(ProfileError, match="cannot be exported.*layers as a list"):
        profile_layers(job(Asks(), torch.randn(4)))
