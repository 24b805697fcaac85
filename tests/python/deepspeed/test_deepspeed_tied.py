# SPDX-License-Identifier: Apache-2.0
"""A tied layer runs on the module of another rank only where it uses nothing of it but what is tied."""

import pytest
import torch
from deepspeed.pipe import TiedLayerSpec
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.tied import beside, built_alike, only_tied, tied_tensors
from torch import nn
from torch.nn import functional

WHY = "layer 7 cannot, because {}"


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(5, 3), nn.Embedding(4, 3)
        self.bias = nn.Parameter(torch.zeros(5))


def with_weight(table, x):
    return functional.linear(x, table.words.weight)


def with_bias(table, x):
    return functional.linear(x, table.words.weight, table.bias)


def with_places(table, x):
    return with_weight(table, x + table.places(torch.arange(4)))


def tied_of(table):
    return tied_tensors(TiedLayerSpec("table", Table, tied_weight_attr="words.weight"), table)


def test_what_is_beside_the_tied_weight():
    table = Table()
    assert beside(tied_of(table), table) == ["bias", "places.weight"]


def test_a_function_that_uses_the_tied_weight_alone_runs():
    table, x = Table(), torch.ones(4, 3)
    run = only_tied(with_weight, tied_of(table), WHY)
    for _ in range(2):
        assert torch.equal(run(table, x), with_weight(table, x))
    assert type(table) is Table and type(table.words) is nn.Embedding


@pytest.mark.parametrize(("function", "name"), [(with_bias, "bias"), (with_places, "places.weight")])
def test_a_function_that_uses_more_is_refused_by_name(function, name):
    table = Table()
    with pytest.raises(OstinatoError, match=f'layer 7 cannot, because "{name}" is not tied'):
        only_tied(function, tied_of(table), WHY)(table, torch.ones(4, 3))
    assert type(table) is Table


def test_modules_from_other_arguments_differ():
    one, same = (TiedLayerSpec("t", nn.Embedding, 5, 3) for _ in range(2))
    assert built_alike(one, same) and built_alike(one, one)
    assert not built_alike(one, TiedLayerSpec("t", nn.Embedding, 5, 3, padding_idx=1))
    assert not built_alike(*(TiedLayerSpec("t", nn.Embedding, 5, 3, _weight=torch.zeros(5, 3)) for _ in range(2)))
