# SPDX-License-Identifier: Apache-2.0
"""Parts of layers on several ranks against the whole ones."""

import re
from types import SimpleNamespace

import pytest
import sharded_jobs as jobs
import torch
from ostinato import nn as parts
from ostinato.profile.model.shardable import mark_shardable
from torch import nn
from torch.nn import functional


@pytest.fixture(params=["memory", "group"])
def meet(request):
    """Runs a job on a world whose ranks meet in the memory of their host, and over their process group."""
    return lambda world, job, *args: world.run(jobs.by, request.param, job.__name__, *args)


@pytest.mark.parametrize("padding_idx", [None, 4])
def test_embedding_equals_the_whole_one_bit_for_bit(meet, world2, world4, padding_idx):
    assert meet(world2, jobs.embedding, padding_idx) == [6, 5]
    assert meet(world4, jobs.embedding, padding_idx) == [3, 3, 3, 2]


@pytest.mark.parametrize("gather", [True, False])
def test_linear(meet, world4, gather):
    assert max(meet(world4, jobs.linear, gather)) < 1e-14


@pytest.mark.parametrize("name", jobs.LOSSES)
def test_loss_functions_go_on_working(meet, world4, name):
    """Sums of 11 float32 figures in another order."""
    assert max(meet(world4, jobs.loss, name)) < 2e-6


def test_layer_of_a_user(meet, world2):
    assert max(meet(world2, jobs.protocol)) < 1e-5


@pytest.mark.parametrize(
    "what, words", [("token", "beyond the vocabulary"), ("target", "beyond the classes")]
)
def test_figures_that_no_rank_holds(meet, world2, what, words):
    assert all(words in error for error in meet(world2, jobs.refused, what))


# What follows needs no other rank.

ALONE = parts.Shard(0, 1)


def test_bounds_are_as_equal_as_can_be():
    assert [parts.Shard(i, 4).bounds(10) for i in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [parts.Shard(i, 3).bounds(2) for i in range(3)] == [(0, 1), (1, 2), (2, 2)]


def logits(*shape):
    return parts.ShardedLogits(torch.randn(*shape), ALONE, shape[-1])


def test_logits_show_the_shape_of_the_whole():
    split = parts.ShardedLogits(torch.zeros(2, 5, 3), parts.Shard(1, 4), 11)
    assert split.shape == (2, 5, 11) and split.size(-1) == 11 and split.dim() == split.ndim == 3
    assert split.transpose(1, 2).shape == (2, 11, 5)
    assert split[:, 1:].reshape(-1, 11).shape == (8, 11)
    assert split.reshape(10, -1).shape == (10, 11)
    assert split.permute(0, 2, 1).to(torch.float64).dtype == torch.float64
    assert split.flatten(0, 1).contiguous().shape == (10, 11)


@pytest.mark.parametrize(
    "use, words",
    [
        (lambda x: torch.softmax(x, -1), r"torch's softmax\(\)"),
        (lambda x: functional.log_softmax(x, dim=-1), r"torch's log_softmax\(\)"),
        (lambda x: x.argmax(-1), r"argmax\(\)"),
        (lambda x: x[..., 0], "an index that is not a slice"),
        (lambda x: x[..., :3], "a slice of the classes"),
        (lambda x: x.reshape(-1), r"reshape\(-1\)"),
        (lambda x: x.flatten(), "over the classes"),
        (lambda x: x.transpose(0, 1).reshape(-1, 5), r"reshape\(-1, 5\)"),
        (lambda x: functional.cross_entropy(x, torch.zeros(2, 5), reduction="sum"), "of probabilities"),
        (
            lambda x: functional.cross_entropy(
                x.flatten(0, 1), torch.zeros(10).long(), weight=torch.ones(11)
            ),
            "class weights",
        ),
        (lambda x: functional.cross_entropy(x, torch.zeros(2, 11).long()), "classes in dimension 2"),
    ],
)
def test_what_needs_all_classes_is_refused_by_name(use, words):
    with pytest.raises((TypeError, AttributeError), match=words):
        use(logits(2, 5, 11))


def test_operators_are_refused_by_name_and_logits_stay_hashable():
    made = logits(2, 5, 11)
    for symbol, use in {
        "+": lambda x: x + 1.0,
        "-": lambda x: -x,
        "*": lambda x: 2 * x,
        "/": lambda x: x / 2.0,
        ">": lambda x: x > 0,
        "==": lambda x: x == made,
        "!=": lambda x: x != 0,
    }.items():
        with pytest.raises(
            TypeError, match=re.escape(f"the operator {symbol} on the logits of a sharded head")
        ):
            use(logits(2, 5, 11))
    assert {made: 1}[made] == 1


def test_half_precision_keeps_its_type_and_sums_in_float():
    torch.manual_seed(0)
    part, targets = torch.randn(50, 11).bfloat16().requires_grad_(), torch.randint(11, (50,))
    loss = parts.vocabulary_cross_entropy(part, targets, ALONE, 11)
    loss.backward()
    assert loss.dtype == part.grad.dtype == torch.bfloat16
    assert torch.allclose(loss.float(), functional.cross_entropy(part.float(), targets), rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_under_autocast_has_the_type_that_torch_gives_it(dtype, reduction):
    torch.manual_seed(0)
    part, targets = (
        torch.randn(20000, 11).to(dtype),
        torch.randint(11, (20000,)),
    )  # float16 cannot hold the sum
    with torch.autocast("cpu", torch.bfloat16):
        one = functional.cross_entropy(part, targets, reduction=reduction)
        loss = functional.cross_entropy(parts.ShardedLogits(part, ALONE, 11), targets, reduction=reduction)
    assert loss.dtype == one.dtype
    assert torch.allclose(loss, one)


def test_masked_classes_take_no_part():
    part = torch.tensor([[1.0, float("-inf"), 2.0], [float("-inf"), 3.0, 3.0]], requires_grad=True)
    same, targets = part.detach().clone().requires_grad_(), torch.tensor([2, 1])
    parts.vocabulary_cross_entropy(part, targets, ALONE, 3).backward()
    functional.cross_entropy(same, targets).backward()
    assert torch.allclose(part.grad, same.grad)


def test_all_targets_ignored_is_not_a_number_as_in_torch():
    targets = torch.full((3,), -100)
    assert parts.vocabulary_cross_entropy(torch.randn(3, 4), targets, ALONE, 4).isnan()
    assert functional.cross_entropy(torch.randn(3, 4), targets).isnan()


class Wrong(nn.Linear):
    def sharded(self, shard):
        made = nn.Linear(*self.makes)
        made.split = self.splits
        return made


@pytest.mark.parametrize(
    "makes, splits, words",
    [
        ((4, 3), {"weight": 0}, "but `split` says"),
        ((4, 3), {"wait": 0}, "names 'wait', which Wrong does not have"),
    ],
)
def test_parts_that_do_not_fit_are_refused(makes, splits, words):
    whole = Wrong(4, 6)
    whole.makes, whole.splits = makes, splits
    with pytest.raises(parts.ShardingError, match=words):
        parts.sharded(whole, parts.Shard(0, 2))


@pytest.mark.parametrize(
    "layer, words",
    [
        (nn.Conv1d(1, 1, 1), "Conv1d does not say how to cut it"),
        (nn.Dropout(), "Dropout does not say how to cut it"),
        (nn.Embedding(9, 2, max_norm=1.0), r"nn.Embedding\(max_norm=1.0\) cannot be sharded"),
        (nn.Embedding(9, 2, sparse=True), "sparse"),
        (nn.Embedding(1, 2), "has 1 rows, too few for 2 ranks"),
    ],
)
def test_layers_that_cannot_be_cut_are_refused_by_name(layer, words):
    with pytest.raises(parts.ShardingError, match=words):
        parts.sharded(layer, parts.Shard(0, 2))


def linear(change) -> nn.Linear:
    layer = nn.Linear(4, 6)
    change(layer)
    return layer


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda layer: layer.register_forward_hook(lambda _m, _i, made: 2 * made),
            "has forward hooks, which",
        ),
        (lambda layer: layer.register_full_backward_hook(lambda *_: None), "has backward hooks, which"),
        (lambda layer: setattr(layer, "forward", torch.tanh), r"has a forward\(\) given to it, which"),
        (lambda layer: layer.bias.register_hook(lambda gradient: 0 * gradient), "has hooks of bias, which"),
    ],
)
def test_a_layer_with_more_than_its_class_does_is_refused(change, words):
    """Its part would not do that."""
    layer = linear(change)
    assert not mark_shardable([SimpleNamespace()], [layer])[0].shardable, "no search shards it"
    with pytest.raises(parts.ShardingError, match=words):
        parts.sharded(layer, parts.Shard(0, 2))


def test_parameters_keep_what_a_script_has_noted_on_them():
    layer = linear(lambda layer: setattr(layer.weight, "decays", False))
    assert parts.sharded(layer, parts.Shard(0, 2)).weight.decays is False


def test_layers_that_every_rank_runs_alike():
    layer = nn.LayerNorm(4).eval()
    assert parts.sharded(layer, parts.Shard(1, 2)) is layer and not layer.training


def test_a_frozen_layer_stays_frozen():
    part = parts.sharded(nn.Embedding(9, 2).requires_grad_(False), parts.Shard(1, 2))
    assert not part.weight.requires_grad
