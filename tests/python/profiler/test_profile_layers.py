# SPDX-License-Identifier: Apache-2.0
"""What the profiler says of single layers, against figures that are known exactly."""

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass

import pytest
import torch
from deepspeed.pipe import LayerSpec
from torch import nn

from ostinato.profile import ProfileError
from ostinato.profile.model.job import any_parameters
from support.profiling import Front, profile

FP32 = 4


def test_a_linear_layer_to_the_byte():
    first, second = profile(
        [Front(), nn.Linear(5, 7)], torch.randn(3, 5), config={"optimizer": {"type": "Adam"}}
    ).layers
    assert second.name == "1:Linear"
    assert second.parameters == second.gradients == (5 * 7 + 7) * FP32
    assert second.optimizer_state == 2 * (5 * 7 + 7) * FP32
    assert second.input_bytes == 3 * 5 * FP32
    assert second.kept == second.output_bytes == 3 * 7 * FP32
    assert second.forward_workspace == 0
    # The gradients of input, weight and bias are made before they are handed on or added.
    assert second.backward_workspace >= 3 * 5 * FP32
    assert first.parameters == first.optimizer_state // 2 == FP32


def test_workspace_is_what_is_not_kept():
    class Wasteful(nn.Module):
        def forward(self, x):
            torch.empty(1000, dtype=torch.uint8)
            return x + 1

    row = profile([Front(), Wasteful()], torch.randn(4)).layers[1]
    assert row.kept == 4 * FP32
    assert row.forward_workspace == 1000 - 4 * FP32


def test_a_layer_without_parameters():
    row = profile([Front(), nn.ReLU()], torch.randn(2, 3)).layers[1]
    assert row.backward.repeats == row.backward_input.repeats == row.backward_weight.repeats == 2
    assert row.backward_weight.median == 0 and row.backward_input.median > 0


def test_a_layer_that_works_in_place():
    inputs = torch.full((2, 3), -1.0)
    row = profile([Front(), nn.ReLU(inplace=True)], inputs).layers[1]
    assert row.kept == 0
    assert torch.equal(inputs, torch.full((2, 3), -1.0))


def test_the_first_layer_splits_as_the_executor_splits_a_first_stage():
    """Which has no gradient to hand on, and computes in its first half what lies behind its first operator."""
    row = profile([nn.Linear(4, 4), nn.Linear(4, 4)], torch.randn(2, 4)).layers[0]
    assert row.backward_input.repeats == row.backward_weight.repeats == 2 and row.backward_weight.median > 0


def test_the_loss_belongs_to_the_last_layer():
    seen = []

    def loss(output, labels):
        seen.append(labels)
        return nn.functional.mse_loss(output, labels)

    labels = torch.zeros(2, 4)
    result = profile([nn.Linear(4, 4), nn.Linear(4, 4)], torch.randn(2, 4), loss_fn=loss, labels=labels)
    assert seen and all(given is labels for given in seen)
    assert result.layers[1].output_bytes == 2 * 4 * FP32
    names = {(row.layer, row.name) for row in result.operators}
    assert (1, "aten::mse_loss") in names and (0, "aten::mse_loss") not in names


def test_tuples_go_from_layer_to_layer():
    class Two(nn.Module):
        def forward(self, x):
            return x * 2, torch.arange(3)

    rows = profile([Two(), lambda pair: pair[0] + pair[1].sum()], torch.randn(2, 2)).layers
    assert rows[0].output_bytes == rows[1].input_bytes == 2 * 2 * FP32 + 3 * 8
    assert rows[1].name == "1:<lambda>"


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        time.sleep(there)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.back)
        return gradient, None, None


class Sleeper(nn.Module):
    def __init__(self, there, back):
        super().__init__()
        self.there, self.back = there, back

    def forward(self, x):
        return Sleep.apply(x, self.there, self.back)


def test_a_layer_that_waits_costs_its_wait():
    rows = profile([nn.Linear(2, 2), Sleeper(0.004, 0.008), Sleeper(0.008, 0.004)], torch.randn(2, 2)).layers
    assert rows[2].same_as == -1  # the same class, another configuration
    for row, there, back in ((rows[1], 4e6, 8e6), (rows[2], 8e6, 4e6)):
        assert row.forward.low >= there and row.backward.low >= back and row.backward_input.low >= back


def test_layers_that_are_the_same_are_measured_once():
    calls = Counter()

    class Counted(nn.Linear):
        def forward(self, x):
            calls[id(self)] += 1
            return super().forward(x)

    layers = [
        Counted(4, 4),
        Counted(4, 4),
        Counted(4, 4),
        nn.Linear(4, 4),
        Counted(4, 4, bias=False),
        Counted(4, 4),
    ]
    rows = profile(layers, torch.randn(2, 4)).layers
    # The first has no gradient to hand on, and the last ends the chain: each is measured itself.
    assert [row.same_as for row in rows] == [-1, -1, 1, -1, -1, -1]
    assert id(layers[2]) not in calls and calls[id(layers[1])] > 0
    assert rows[2].name == "2:Counted" and rows[2].index == 2
    assert rows[2].forward.median == rows[1].forward.median and rows[2].kept == rows[1].kept


class Counts(nn.Module):
    """Every second one is wide; so many are made before one that is."""

    made = 0
    narrow = 1

    def __init__(self, width):
        super().__init__()
        type(self).made += 1
        wide = self.made % 2 == 0 if self.narrow == 1 else self.made > self.narrow
        self.layer = nn.Sequential(nn.Linear(width, 16 if wide else 4), nn.Linear(16 if wide else 4, width))

    def forward(self, x):
        return self.layer(x)


class CountsOnce(Counts):
    made, narrow = 0, 2


class Caches(nn.Module):
    """The first one makes a tensor that all read."""

    mask = None

    def __init__(self):
        super().__init__()
        Caches.mask = torch.ones(4) if Caches.mask is None else Caches.mask

    def forward(self, x):
        return x * self.mask


def test_equal_layer_specs_may_build_unlike_layers():
    Counts.made = 0
    layers = [
        LayerSpec(nn.Linear, 4, 4),
        *(LayerSpec(Counts, 4) for _ in range(4)),
        LayerSpec(nn.Linear, 4, 4),
    ]
    narrow, wide = (8 * 4 + 8) * FP32, (8 * 16 + 20) * FP32
    rows = profile(layers, torch.randn(2, 4)).layers
    assert [row.parameters for row in rows[1:-1]] == [narrow, wide, narrow, wide]
    assert [row.same_as for row in rows[1:-1]] == [-1, -1, 1, 2]


def test_what_a_class_caches_is_made_where_there_is_memory():
    assert len(profile([LayerSpec(Caches) for _ in range(3)], torch.randn(2, 4)).layers) == 3


def test_a_layer_spec_that_builds_no_layer_twice_is_refused():
    CountsOnce.made = 0
    with pytest.raises(ProfileError, match="layer 1:CountsOnce cannot be built again: .* as an argument"):
        profile([LayerSpec(CountsOnce, 4) for _ in range(4)], torch.randn(2, 4))


class Reversed(torch.autograd.Function):
    """A backward of its own, which depends on a number."""

    @staticmethod
    def forward(ctx, x, number):
        ctx.number = number
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * 2 if ctx.number % 2 else gradient.clone()), None


class Indexed(nn.Module):
    def __init__(self, width, layer_idx, size=0):
        super().__init__()
        self.layer_idx, self.size, self.inner = layer_idx, size, nn.Linear(width, width)

    def forward(self, x):
        return self.inner(x)


class NamedByPath(Indexed):
    """As peft's layers know where they are."""

    def __init__(self, width, number):
        super().__init__(width, 0)
        self.kwargs = {"name": f"model.layers.{number}.inner"}


class OddOnes(Indexed):
    def forward(self, x):
        return super().forward(x).relu() if self.layer_idx % 2 else super().forward(x)


class OddBackwards(Indexed):
    def forward(self, x):
        return Reversed.apply(super().forward(x), self.layer_idx)


@pytest.mark.parametrize(
    ("kind", "more", "same_as"),
    [
        (Indexed, lambda i: (), [-1, -1, 1, 1, 1, -1]),
        (Indexed, lambda i: (i,), [-1, -1, -1, -1, -1, -1]),  # `size` is no index
        (NamedByPath, lambda i: (), [-1, -1, 1, 1, 1, -1]),
        (OddOnes, lambda i: (), [-1, -1, -1, 1, 2, -1]),
        (OddBackwards, lambda i: (), [-1, -1, -1, 1, 2, -1]),
    ],
)
def test_layers_that_differ_in_an_index_only_are_measured_once(kind, more, same_as):
    """Where it is used as no more than a name."""
    specs = [LayerSpec(kind, 4, i, *more(i)) for i in range(6)]
    by_name = profile(specs, torch.randn(2, 4), repeats=1)
    assert [row.same_as for row in by_name.layers] == same_as
    assert (
        by_name.model_sha256
        == profile([spec.build() for spec in specs], torch.randn(2, 4), repeats=1).model_sha256
    )
    modules = profile([nn.Sequential(spec.build()) for spec in specs], torch.randn(2, 4), repeats=1).layers
    assert [row.same_as for row in modules] == same_as
    assert modules[3].parameters == by_name.layers[3].parameters == (4 * 4 + 4) * FP32


def test_other_shapes_of_inputs_are_another_measurement():
    layers = [Front(), nn.ReLU(), nn.Flatten(0), nn.ReLU(), nn.Identity()]
    rows = profile(layers, torch.randn(2, 4)).layers
    assert rows[3].same_as == -1


def test_a_forward_that_raises_names_the_layer():
    with pytest.raises(
        ProfileError,
        match=r"layer 1:Linear raised RuntimeError in its forward: .*shapes cannot be multiplied",
    ):
        profile([nn.Linear(4, 4), nn.Linear(5, 4)], torch.randn(2, 4))


def test_a_backward_that_raises_names_the_layer():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("no way back")

    where = r"layer 1:apply raised ValueError in its backward \(.*test_profile_layers.py:\d+\): no way back"
    with pytest.raises(ProfileError, match=where):
        profile([nn.Linear(4, 4), Broken.apply], torch.randn(2, 4))


def test_a_shape_that_changes_is_told():
    class Shrinks(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x[: 4 - self.calls // 4]

    with pytest.raises(
        ProfileError, match=r"layer 1:Shrinks returned shapes \[\(4, 2\)\], and then .*pad them"
    ):
        profile([nn.Linear(2, 2), Shrinks()], torch.randn(4, 2), repeats=5)


def test_a_module_that_the_chain_calls_twice():
    """Its parameters count in both places: on two stages each holds a copy."""
    shared, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    rows = profile([Front(), shared, nn.Tanh(), shared, nn.Tanh()], inputs).layers
    assert rows[3].same_as == 1 and rows[1].parameters == rows[3].parameters == 20 * FP32
    assert all(parameter.grad is not None for parameter in shared.parameters())


def test_float16_as_deepspeed_keeps_it():
    config = {"fp16": {"enabled": True}, "optimizer": {"type": "SGD"}}
    row = profile([nn.Embedding(4, 8), nn.Linear(8, 8)], torch.tensor([1, 2]), config=config).layers[1]
    assert row.parameters == (64 + 8) * 2 and row.optimizer_state == (64 + 8) * FP32  # the fp32 copy alone
    assert row.kept == row.output_bytes == 2 * 8 * 2


def test_no_layers_is_refused():
    with pytest.raises(ProfileError, match="no layers"):
        profile([], torch.randn(1))


def test_half_precision_as_deepspeed_keeps_it():
    config = {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1}}
    row = profile([nn.Embedding(4, 8), nn.Linear(8, 8)], torch.tensor([1, 2]), config=config).layers[1]
    assert row.parameters == row.gradients == (64 + 8) * 2
    assert row.optimizer_state == (64 + 8) * (4 + 8)  # a copy of the parameters, and two moments
    assert row.output_bytes == 2 * 8 * 2


def test_checkpointed_layers_keep_less():
    block = [nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(2)]
    whole = profile(block, torch.randn(8, 16)).layers[1]
    checkpointed = profile(block, torch.randn(8, 16), checkpoint_interval=1).layers[1]
    random_state = torch.get_rng_state().numel()  # is kept for the recomputation
    assert checkpointed.kept == 8 * 16 * FP32 + random_state
    assert whole.kept == 8 * (64 + 16) * FP32  # tanh keeps its output only
    assert checkpointed.backward_input.repeats == 0  # it cannot be split


def test_the_loss_is_not_checkpointed():
    """DeepSpeed calls it outside, so what its backward needs stays."""
    words, labels = 1000, torch.randint(0, 1000, (8,))
    job = {"labels": labels, "loss_fn": nn.functional.cross_entropy, "checkpoint_interval": 1}
    head = profile([nn.Linear(16, 16), nn.Linear(16, words)], torch.randn(8, 16), **job).layers[1]
    assert 8 * words * FP32 <= head.kept < 2 * 8 * words * FP32  # the logarithms of its softmax


class Skips(nn.Module):
    """Stochastic depth."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, x):
        return x if torch.rand(()) < 0.5 else x + self.body(x)


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_that_skips_itself_counts_as_one_that_runs(seed):
    def second(layer):
        torch.manual_seed(seed)
        return profile([nn.Tanh(), layer], torch.randn(8, 16), repeats=20).layers[1]

    skips, runs = Skips(), Skips()
    runs.forward = lambda x: x + runs.body(x)
    found, whole = second(skips), second(runs)
    assert (found.kept, found.forward_workspace) == (whole.kept, whole.forward_workspace)
    assert found.backward_workspace >= whole.backward_workspace


def test_the_layers_that_deepspeed_checkpoints():
    """Frozen ones, too, unless the model names others."""
    block = [nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(2)]
    block[1].requires_grad_(False)
    kept = [
        profile(block, torch.randn(8, 16), checkpoint_interval=1, checkpointable=these).layers[1].kept
        for these in (any_parameters, lambda layers: False)
    ]
    assert kept[0] == 8 * 16 * FP32 + torch.get_rng_state().numel()
    assert kept[1] == profile(block, torch.randn(8, 16)).layers[1].kept < kept[0]


def test_buffers_that_a_first_forward_makes():
    class Masked(nn.Linear):
        def forward(self, x):
            if not hasattr(self, "mask"):
                self.register_buffer("mask", torch.ones(1000, 16))
            return super().forward(x) * self.mask[: len(x)]

    row = profile([nn.Linear(16, 16), Masked(16, 16)], torch.randn(8, 16)).layers[1]
    assert row.parameters == (16 * 16 + 16 + 1000 * 16) * FP32


def test_nothing_runs_backwards_before_the_first_parameter_that_learns():
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)]
    layers[0].requires_grad_(False)
    result = profile(layers, torch.randn(4, 8))
    frozen, learning = result.layers[:2], result.layers[2:]
    for row in frozen:
        assert (
            row.backward.median
            == row.backward_input.median
            == row.backward_weight.median
            == row.backward_workspace
            == 0
        )
    # Which the first that learns needs for its weight.
    assert frozen[0].kept == 0 and frozen[1].kept == 4 * 8 * FP32
    assert all(row.backward.median > 0 for row in learning)
    assert {row.layer for row in result.operators if row.phase == "backward"} == {2, 3, 4}


class Detaches(nn.Module):
    def forward(self, pair):
        return pair[0] * pair[1].detach(), pair[1] + 1


def test_an_output_that_nobody_learns_from_has_no_backward():
    """The second of the pair is learned, and read detached alone."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.left(x), self.right(x)

    result = profile([Pair(), Detaches(), lambda pair: pair[0]], torch.randn(4, 8))
    backward = {row.name: row.calls for row in result.operators if row.phase == "backward" and row.layer == 0}
    assert backward["AddmmBackward0"] == 1


@dataclass
class Record:
    hidden: torch.Tensor
    mask: torch.Tensor | None = None


class TakesRecord(nn.Module):
    def forward(self, record):
        return Record(record.hidden.tanh(), record.mask)


@pytest.mark.parametrize(
    "make", [Record, lambda x: OrderedDict(hidden=x, mask=None), lambda x: [(x, None), {"more": 3}]]
)
def test_records_dicts_and_none_go_from_layer_to_layer(make):
    class Gives(nn.Linear):
        def forward(self, x):
            return make(super().forward(x))

    rows = profile(
        [Gives(8, 8), TakesRecord() if make is Record else nn.Identity()], torch.randn(4, 8)
    ).layers
    assert rows[0].output_bytes == rows[1].input_bytes == 4 * 8 * FP32


class Opaque:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda x: x.to_sparse(), "a sparse tensor"),
        (lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda x: torch.nested.nested_tensor([x[:1], x[:2]]), "a nested tensor"),
        (Opaque, "an object of Opaque"),
    ],
)
def test_what_cannot_go_from_layer_to_layer_names_the_layer(make, what):
    class Gives(nn.Module):
        def forward(self, x):
            return make(x)

    with pytest.raises(ProfileError, match=f"layer 1:Gives gives {what}.*merge the layers that pass it on"):
        profile([Front(), Gives(), nn.Identity()], torch.randn(4, 8))
